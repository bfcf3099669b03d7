"""The suite's table in a terminal of 80 columns."""

import textwrap
from collections.abc import Sequence
from itertools import groupby

from benchmarks.suite.rows import Row

WIDTH = 80
_CASE = 34


def table(rows: Sequence[Row]) -> str:
    """Return the rows below the titles of their entries, in lines of at most 80 characters."""
    lines = [f"{'':{_CASE + 2}}{'ours':>8}{'peer':>9} {'':12}{'ratio':>7}{'spread':>7}"]
    for title, of_entry in groupby(rows, key=lambda row: row.title):
        lines.append(title)
        for row in of_entry:
            lines += _lines(row)
    return "\n".join(lines)


def _lines(row: Row) -> list[str]:
    case = row.case if len(row.case) <= _CASE else f"{row.case[: _CASE - 1]}…"
    if row.ours is not None and row.theirs is not None:
        figures = f"{number(row.ours):>8}{number(row.theirs):>9} {row.unit:12}{row.ratio:7.2f}{row.spread:7.0%}"
        return [f"  {case:{_CASE}}{figures}"]
    named = f"{case}: " if case else ""
    text = f"{named}{row.status}, {row.note}"
    return textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ")


def number(value: float) -> str:
    """Return a figure with three digits or all digits before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
