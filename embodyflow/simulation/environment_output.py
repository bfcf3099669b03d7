"""Limits of what environments print, so that a flood of prints cannot fill a disk."""

import logging
import os
import sys
import threading
from collections.abc import Iterable
from typing import Any, TextIO, cast

OUTPUT_BYTES = 10_000_000
"""Bytes that the environments of one process may print in its life, restarts included."""

_READ_BYTES = 1 << 16
_STDERR = 2
_logger = logging.getLogger(__name__)


class OutputLimit:
    """The bytes that the environments of one process may still print.

    Args:
        name: Name of the process for the note that replaces further output.
    """

    def __init__(self, name: str) -> None:
        self._name, self._left = name, OUTPUT_BYTES
        self._is_noted = False

    def admit(self, size: int) -> int:
        """Return how many of the next ``size`` bytes may pass, and count them."""
        passed = min(size, self._left)
        self._left -= passed
        return passed

    def note(self) -> str:
        """Return the line that says that output is dropped, and log it; an empty string from the second call on."""
        if self._is_noted:
            return ""
        self._is_noted = True
        line = f"{self._name} printed more than {OUTPUT_BYTES / 1e6:g} MB; the rest of its output is dropped"
        _logger.warning(line)
        return f"\n{line}\n"


class OutputPipe:
    """A pipe that carries the stdout and stderr of a process to the stderr of this one, up to a limit.

    Args:
        limit: Bytes that may pass.

    Attributes:
        theirs: End that the process writes to; the caller closes it once the process has it.
    """

    def __init__(self, limit: OutputLimit) -> None:
        self._limit = limit
        self._ours, self.theirs = os.pipe()
        os.set_blocking(self._ours, False)

    def fileno(self) -> int:
        """Return the descriptor to poll for output."""
        return self._ours

    def forward(self) -> bool:
        """Pass on some of what was printed; return False if nothing was, or nobody can print any more."""
        try:
            printed = os.read(self._ours, _READ_BYTES)
        except BlockingIOError:
            return False
        passed = self._limit.admit(len(printed))
        _write(printed[:passed])
        if passed < len(printed):
            _write(self._limit.note().encode())
        return bool(printed)

    def close(self) -> None:
        """Pass on what is left and close the pipe."""
        for _ in range(OUTPUT_BYTES // _READ_BYTES):  # a child that outlives the process may print for ever
            if not self.forward():
                break
        os.close(self._ours)


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(_STDERR, data) :]


class PrintingLimited:
    """A block that limits what its thread prints by Python's ``sys.stdout`` and ``sys.stderr``.

    It is a class because every step enters it, and a generator costs several times as much.

    What native code writes to the descriptors passes: only a process of its own can be limited there.

    Args:
        limit: Bytes that may pass.
    """

    def __init__(self, limit: OutputLimit) -> None:
        self._limit = limit

    def __enter__(self) -> None:
        _wrap_streams()
        self._before = getattr(_current, "limit", None)
        _current.limit = self._limit

    def __exit__(self, *error: object) -> None:
        _current.limit = self._before
        _unwrap_streams()


_current = threading.local()
_lock = threading.Lock()
_users: list[tuple[TextIO, TextIO]] = []  # the streams to restore, once per block that is being executed


def _wrap_streams() -> None:
    """Wrap the two streams at the outermost block of all threads."""
    with _lock:
        _users.append(_users[-1] if _users else (sys.stdout, sys.stderr))
        if len(_users) == 1:
            stdout, stderr = _users[0]
            sys.stdout, sys.stderr = cast(TextIO, _LimitedStream(stdout)), cast(TextIO, _LimitedStream(stderr))


def _unwrap_streams() -> None:
    with _lock:
        originals = _users.pop()
        if not _users:
            sys.stdout, sys.stderr = originals


class _LimitedStream:
    """A stream that drops what a thread writes beyond its limit; other threads write as they did."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        limit: OutputLimit | None = getattr(_current, "limit", None)
        if limit is None:
            return self._stream.write(text)
        passed = limit.admit(len(text))
        if passed:
            self._stream.write(text[:passed])
        if passed < len(text):
            self._stream.write(limit.note())
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
