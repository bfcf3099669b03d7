"""Memory of a process and its children, as the kernel counts it."""

import os
import resource
from collections.abc import Iterator

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def private_bytes(pid: int) -> int:
    """Return the bytes of memory that a process and its descendants hold for themselves; 0 if they have ended.

    Files and shared memory that they map do not count.
    """
    return sum(map(_own_bytes, _family(pid)))


def peak_bytes() -> int:
    """Return the largest number of bytes of memory that this process has held so far, shared memory included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def peak_device_bytes() -> int:
    """Return the largest number of bytes of device memory that this process's tensors have held; 0 without a GPU."""
    import torch  # environment processes count memory too, and need no torch

    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() and torch.cuda.is_initialized() else 0


def kernel_kills() -> int:
    """Return how many processes this machine's kernel has killed since its start because memory ran out.

    The kernel of a container's host counts for all its containers. The number is 0 where the kernel does not tell.
    """
    counters = dict(line.split() for line in _read("/proc/vmstat").splitlines())
    return int(counters.get(b"oom_kill", 0))


def _own_bytes(pid: int) -> int:
    fields = _read(f"/proc/{pid}/statm").split()  # size, resident, shared, …, in pages; nothing of a zombie's
    return (int(fields[1]) - int(fields[2])) * _PAGE_BYTES if fields else 0


def _family(pid: int) -> Iterator[int]:
    yield pid
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:  # it has ended
        return
    for thread in threads:
        for child in _read(f"/proc/{pid}/task/{thread}/children").split():
            yield from _family(int(child))


def _read(path: str) -> bytes:
    """Return the content of a small file of the kernel, or nothing if its process has ended or it does not exist."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(file, 1 << 16)
    except ProcessLookupError:
        return b""
    finally:
        os.close(file)
