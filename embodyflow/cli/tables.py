"""The console that tables are printed to, and the cells of tables."""

import os

from rich.console import Console
from rich.text import Text

from embodyflow.cli.plain_text import plain

FILE_WIDTH = 1000
"""Columns of a table that is written to a file or a pipe, so that no line wraps."""


def table_console() -> Console:
    """Return the console for tables. A file or a pipe gets full lines instead of 80 columns.

    Brackets and words between colons in a cell are text: they are neither styles nor emoji.
    """
    console = Console(markup=False, emoji=False)
    if console.is_terminal or "COLUMNS" in os.environ:
        return console
    return Console(width=FILE_WIDTH, markup=False, emoji=False)


def as_it_is(value: object) -> Text:
    """Return a cell for a text of others, which a terminal shows and does not obey."""
    return Text(plain(str(value)))
