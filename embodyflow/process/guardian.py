"""Runs a command, and ends it with all its descendants once the process that asked for it is gone.

``python -P guardian.py <descriptor> <command> …``: the descriptor is the read end of a pipe. The other end belongs to
the parent, which closes it to end the command, or by its own end. Standard streams are the command's.
"""

import contextlib
import ctypes
import os
import subprocess
import sys
import threading
import time

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
KILLED = 137
"""Exit code after the pipe was closed."""
NOT_STARTED = 127
"""Exit code if the command could not be started, as shells have it."""


def main(descriptor: int, command: list[str]) -> int:
    """Run the command and return its exit code, 128 plus the number of the signal that ended it."""
    # Orphaned descendants become children of this process, so they are found whatever session they run in.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    threading.Thread(target=_end_with, args=[descriptor], daemon=True).start()
    try:
        process = subprocess.Popen(command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        return NOT_STARTED
    code = process.wait()
    _kill_descendants()
    return 128 - code if code < 0 else code


def _end_with(descriptor: int) -> None:
    os.read(descriptor, 1)
    _kill_descendants()
    os._exit(KILLED)


def _kill_descendants() -> None:
    while _has_children():
        import psutil  # takes longer than most programs need it for

        for each in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        time.sleep(0.001)


def _has_children() -> bool:
    """Return True if a child is alive, after reaping those that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
