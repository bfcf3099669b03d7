"""The signals that end a command, so that its ``with`` blocks stop what it started."""

import signal
import sys
from types import FrameType
from typing import NoReturn

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_AGAIN_SECONDS = 0.05


def exit_on_signals() -> None:
    """Make SIGINT, SIGTERM and SIGHUP raise ``SystemExit(128 + signum)``, so that ``with`` blocks clean up.

    Python drops an exception that is raised in a destructor or in the callback of a weak reference, and calls
    ``sys.unraisablehook`` instead. A signal may come in either, so the exit is then raised again.
    """
    for signum in _STOPPING:
        signal.signal(signum, _exit)
    signal.signal(signal.SIGALRM, _exit_again)
    sys.unraisablehook = _raise_exit_again


def ignore_signals() -> None:
    """Ignore these signals from now on: the process is stopping and needs a few seconds."""
    for signum in _STOPPING:
        signal.signal(signum, signal.SIG_IGN)


class _Exit(SystemExit):
    """The exit after a signal."""


_code = 0


def _exit(signum: int, frame: FrameType | None) -> NoReturn:
    global _code
    ignore_signals()
    print(f"{signal.Signals(signum).name}: stopping …", file=sys.stderr, flush=True)
    _code = 128 + signum
    raise _Exit(_code)


def _exit_again(signum: int, frame: FrameType | None) -> NoReturn:
    raise _Exit(_code)


def _raise_exit_again(lost: "sys.UnraisableHookArgs") -> None:
    if isinstance(lost.exc_value, _Exit):
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)  # this hook cannot raise it either
    else:
        sys.__unraisablehook__(lost)
