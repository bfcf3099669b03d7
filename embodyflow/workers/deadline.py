"""A time limit that interrupts Python code in the thread it runs in."""

import ctypes
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from embodyflow.errors import NodeTimeoutError


class _Expired(BaseException):
    """Raised in the thread whose time is over; not an ``Exception``, so that no ``except Exception`` stops it."""


@contextmanager
def time_limit(seconds: float, what: str) -> Iterator[None]:
    """Interrupt the block when it takes longer.

    The interpreter raises between two of its instructions. A call that stays in native code (a collective, a sleep) is
    interrupted only when it returns, so whoever waits for the block keeps a deadline of its own.

    Args:
        seconds: that the block may take.
        what: named in the error.

    Raises:
        NodeTimeoutError: it took longer; a note says where it was.
    """
    thread, lock = threading.get_ident(), threading.Lock()
    over = False

    def interrupt() -> None:
        with lock:
            if not over:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_Expired))

    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        try:
            yield
        finally:
            with lock:
                over = True
            timer.cancel()
    except _Expired as expired:
        error = NodeTimeoutError(f"{what} took longer than {seconds:g} s")
        error.add_note(f"it was interrupted in\n{''.join(traceback.format_tb(expired.__traceback__))}")
        raise error from None
