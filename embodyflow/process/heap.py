"""The C library's heap, set for a process that computes with tensors."""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
LARGEST_KEPT = 32 * 2**20  # bytes of a tensor; the most that glibc allows
MOST_KEPT = 2**30  # bytes of freed memory


def keep_freed_memory() -> None:
    """Let the memory of freed tensors serve the next ones, up to a GiB of it, in this process.

    glibc gives it back to the system after each step and asks for it again in the next, page by page: for a small model
    a third of a step's time (mallopt(3)). Where the C library is another one, nothing is done.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)
        library.mallopt(M_TRIM_THRESHOLD, MOST_KEPT)
