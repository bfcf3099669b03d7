"""A time limit that interrupts Python code in the thread it runs in."""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager


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
        TimeoutError: it took longer.
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
    except _Expired:
        raise TimeoutError(f"{what} took longer than {seconds:g} s") from None
