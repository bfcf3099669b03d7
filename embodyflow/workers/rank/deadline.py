"""A time limit that interrupts Python code in its own thread."""

import ctypes
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from embodyflow.errors import NodeTimeoutError


class _Expired(BaseException):
    """Raised in a thread that exceeds its limit; no ``Exception``, so that ``except Exception`` cannot stop it."""


@contextmanager
def time_limit(seconds: float, what: str) -> Iterator[None]:
    """Interrupt the block when it exceeds its time limit.

    The interpreter raises between two bytecode instructions. A call in native code (a collective, a sleep) is
    interrupted only when it returns, so the caller needs a deadline of its own.

    Args:
        seconds: Time limit.
        what: Name of the block in the error.

    Raises:
        NodeTimeoutError: The block exceeded its limit; a note has the stack.
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
