"""Starting a watcher, which learns from a pipe that this process has ended, however it ends."""

import subprocess
import sys
from collections.abc import Mapping


def start_on_pipe(
    module: str, *arguments: str, env: Mapping[str, str], cwd: str | None = None
) -> "subprocess.Popen[bytes]":
    """Run a module in a process of its own session, whose standard input closes when this process ends.

    Args:
        module: Name of the module.
        arguments: Words of its command line.
        env: Its environment.
        cwd: Its folder; ``None`` is the current one.
    """
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,  # only this process holds the write end: child processes do not inherit it
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=dict(env),
        cwd=cwd,
        start_new_session=True,
    )


def send(watcher: "subprocess.Popen[bytes]", line: str) -> None:
    """Write a line to the pipe of a watcher."""
    assert watcher.stdin is not None
    watcher.stdin.write(line.encode())
    watcher.stdin.flush()
