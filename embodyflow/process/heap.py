"""Settings of the C library's heap and of Python's garbage collector for processes that compute with tensors."""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h
LARGEST_TENSOR = 32 * 2**20  # bytes; glibc's maximum
MOST_KEPT = 2**30  # bytes of freed memory
YOUNG_OBJECTS = 50_000  # new objects that start a collection; Python's default is 700


def keep_freed_memory() -> None:
    """Keep up to a GiB of freed memory in this process for the next tensors.

    By default, glibc returns the memory to the system after each step and requests it page by page in the next, which
    takes a third of a step's time for a small model (mallopt(3)). With another C library the call does nothing.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(M_MMAP_THRESHOLD, LARGEST_TENSOR)
        library.mallopt(M_TRIM_THRESHOLD, MOST_KEPT)


def collect_rarely() -> None:
    """Let this process search for unreachable cycles of objects only after many new ones.

    The episodes of a rollout live until its end, so the collections meanwhile find nothing. They take 5 % of the time
    of 64 conversations with a small model, most of it because they push the model out of the processor's caches.
    """
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])


def freeze_objects() -> None:
    """Let later garbage collections skip the objects that exist now, most of which live as long as the process.

    Otherwise a full collection looks through some hundred thousand objects of imported libraries.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def frozen_objects() -> Iterator[None]:
    """Let garbage collections in the block skip the objects that exist when it begins; see :func:`freeze_objects`."""
    freeze_objects()
    try:
        yield
    finally:
        gc.unfreeze()
