"""Memory and disk that all processes of a sandboxed program use together."""

import psutil

from embodyflow.rewards.sandbox.sandbox_child import MAX_FOLDER_BYTES
from embodyflow.rewards.sandbox.sandbox_folder import size_of


class Usage:
    """Usage of a sandbox: the process tree under its first process, and the files in its folder.

    The kernel limits each process; this sum covers a program that spreads over several.

    Args:
        pid: First process of the sandbox, which is a child of the caller.
        folder: Folder of the program.
        memory: Memory limit of all its processes together, in bytes.
    """

    def __init__(self, pid: int, folder: str, memory: int) -> None:
        self._root, self._folder, self._memory = psutil.Process(pid), folder, memory

    def exceeded(self) -> bool:
        """Return True if the program uses more memory or disk than it may."""
        return self._memory_exceeded() or size_of(self._folder, MAX_FOLDER_BYTES) > MAX_FOLDER_BYTES

    def _memory_exceeded(self) -> bool:
        try:
            processes = [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return False
        if sum(map(_resident, processes)) <= self._memory:
            return False
        return sum(map(_proportional, processes)) > self._memory  # counts a page that processes share only once


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def _proportional(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.NoSuchProcess:
        return 0
    except psutil.AccessDenied:  # the kernel hides the share of each process; its resident size bounds it
        return _resident(process)
