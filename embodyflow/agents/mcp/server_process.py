"""Start a command that the kernel kills when the thread that started it ends: ``server_process.py <pid> <command>``.

It is a script of the standard library alone, because the SDK gives a server's process a small environment.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(parent: int, command: list[str]) -> None:
    """Replace this process by a command.

    Args:
        parent: Id of the process that must be alive.
        command: Program and its arguments.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the line above
        raise SystemExit("the process that started this server has ended")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
