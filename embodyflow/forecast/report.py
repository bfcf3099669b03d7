"""A forecast as lines of text."""

from collections.abc import Iterator, Sequence

from embodyflow.forecast.forecast import Forecast
from embodyflow.forecast.schedule import Shape


def in_words(shape: Shape) -> str:
    """Return the order of a shape's iterations in a few words."""
    order = "synchronous" if not shape.staleness else f"{shape.staleness} ahead"
    return order if shape.num_groups is None else f"streaming, {order}"


def placed(shape: Shape) -> str:
    """Return where a shape's ranks are in a few words."""
    if shape.takes_turns:
        return f"{shape.workers} devices in turns"
    workers, ranks = (f"{n} {what}{'s' * (n != 1)}" for n, what in ((shape.workers, "worker"), (shape.ranks, "rank")))
    return f"{workers}, {ranks}"


def table(forecasts: Sequence[Forecast]) -> Iterator[str]:
    """Yield the lines of a table of forecasts: seconds of an iteration with their range, and idle shares."""
    rows = [("placement", "order", "seconds", "90 % range", "idle")]
    for each in forecasts:
        idle = ", ".join(f"{share:.0%}" for share in each.idle.values())
        span = f"{seconds(each.low)}–{seconds(each.high)}"
        rows.append((placed(each.shape), in_words(each.shape), seconds(each.seconds), span, idle))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield f"  {'  '.join(cells)}".rstrip()


def seconds(value: float) -> str:
    """Format seconds by three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def of_bytes(value: float) -> str:
    """Format bytes by three digits with their unit."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} B"
