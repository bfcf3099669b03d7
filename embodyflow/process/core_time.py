"""How long the work of a thread computes, and how long it waits for a core, as the kernel counts it."""

import time
from dataclasses import dataclass
from pathlib import Path

_SCHEDULED = Path("/proc/thread-self/schedstat")
"""Nanoseconds on a core, nanoseconds in the queue of one, and the number of turns; see proc_pid_schedstat(5)."""


@dataclass(frozen=True)
class CoreTime:
    """Seconds on cores, and without one.

    Attributes:
        computing: CPU time of the process.
        queued: How long the thread was ready to run while others had the cores.
    """

    computing: float = 0.0
    queued: float = 0.0

    def __add__(self, other: "CoreTime") -> "CoreTime":
        """Return the seconds of both."""
        return CoreTime(self.computing + other.computing, self.queued + other.queued)

    def __sub__(self, earlier: "CoreTime") -> "CoreTime":
        """Return the seconds since an earlier moment of the same thread."""
        return CoreTime(self.computing - earlier.computing, self.queued - earlier.queued)


def core_time_so_far() -> CoreTime:
    """Return the CPU time of this process and the time in queues of this thread; the latter is 0 without Linux."""
    try:
        queued = int(_SCHEDULED.read_bytes().split()[1])
    except (OSError, IndexError):
        queued = 0
    return CoreTime(time.process_time(), queued / 1e9)
