"""Heap settings of the C library for processes that compute with tensors."""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h
LARGEST_TENSOR = 32 * 2**20  # bytes; glibc's maximum
MOST_KEPT = 2**30  # bytes of freed memory


def keep_freed_memory() -> None:
    """Keep up to a GiB of freed memory in this process for the next tensors.

    By default, glibc returns the memory to the system after each step and requests it page by page in the next, which
    takes a third of a step's time for a small model (mallopt(3)). With another C library the call does nothing.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(M_MMAP_THRESHOLD, LARGEST_TENSOR)
        library.mallopt(M_TRIM_THRESHOLD, MOST_KEPT)
