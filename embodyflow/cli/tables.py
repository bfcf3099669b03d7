"""The console that tables are printed to."""

import os

from rich.console import Console

FILE_WIDTH = 1000
"""Columns of a table that is written to a file or a pipe, so that no line wraps."""


def table_console() -> Console:
    """Return the console for tables. A file or a pipe gets full lines instead of 80 columns."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=FILE_WIDTH)
