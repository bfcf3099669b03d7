"""The log file in a run's folder: what the flow run logs, also without a server that keeps it."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from embodyflow.record.run_folder import RunFolder

LOGGERS = ("prefect", "embodyflow", "py.warnings")
"""Loggers whose records go into the file, with all loggers below them."""

FORMAT = "%(asctime)s %(levelname)-7s %(message)s"


@contextmanager
def logged_to(folder: RunFolder) -> Iterator[None]:
    """Append what is logged in the block to ``run.log``, and the traceback of the exception that ends it.

    Raises:
        OSError: The file cannot be opened.
    """
    handler = _FileHandler(folder.log_path)
    loggers = [logging.getLogger(name) for name in LOGGERS]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    except BaseException as error:
        handler.log(logging.ERROR, f"the run ends: {type(error).__name__}: {error}", error)
        raise
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
        handler.close()


class _FileHandler(logging.FileHandler):
    """Writes each record at once. After a failure of the disk, which the run itself reports, it writes no more."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8")
        self.setFormatter(logging.Formatter(FORMAT))
        self._has_failed = False

    def log(self, level: int, message: str, error: BaseException) -> None:
        """Write a record of this module."""
        traceback = (type(error), error, error.__traceback__)
        self.handle(logging.LogRecord(__name__, level, __file__, 0, message, None, traceback))

    def close(self) -> None:
        try:
            super().close()
        except OSError:  # the rest of a record whose failure has been reported
            if not self._has_failed:
                raise

    def emit(self, record: logging.LogRecord) -> None:
        if not self._has_failed:
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        self._has_failed = True
        print(f"{self.baseFilename}: cannot be written: {sys.exc_info()[1]}", file=sys.stderr)
