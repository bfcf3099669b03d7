"""The iterations of a forecast as a picture: who works on which node when."""

import math
from collections.abc import Sequence
from html import escape

from embodyflow.forecast.events import Period
from embodyflow.forecast.forecast import Forecast
from embodyflow.forecast.report import in_words, placed, seconds
from embodyflow.forecast.schedule import FLOW, Work

WIDTH, LEFT, RIGHT, TOP, ROW, GAP = 760, 96, 16, 58, 26, 8
SHOWN = 3
"""Iterations that it shows."""
COLORS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#9d755d", "#eeca3b", "#ff9da6", "#79706e")
COMMIT, INK, GREY, FAINT = "#a0aec0", "#1a202c", "#4a5568", "#e2e8f0"


def to_gantt(forecast: Forecast) -> str:
    """Draw three iterations of the first simulation, once the pipeline is full, as SVG."""
    first = forecast.shape.staleness + 2
    shown = [
        (work, period)
        for work, period in zip(forecast.work, forecast.periods, strict=True)
        if first <= work.iteration < first + SHOWN and period.end > period.begin and (work.node or work.group != FLOW)
    ]
    return _Picture(forecast, shown).draw()


class _Picture:
    def __init__(self, forecast: Forecast, shown: Sequence[tuple[Work, Period]]) -> None:
        self._forecast, self._shown = forecast, shown
        self._begin = min(period.begin for _, period in shown)
        self._end = max(period.end for _, period in shown)
        self._rows = list(dict.fromkeys(self._row(work, period) for work, period in shown))
        self._rows.sort(key=lambda row: (row == FLOW, not row.startswith(("rollout", "devices")), row))
        self._nodes = list(dict.fromkeys(work.node for work, _ in shown if work.node != "commit"))

    def draw(self) -> str:
        bottom = TOP + len(self._rows) * (ROW + GAP)
        legend = self._legend(bottom + 44)
        height = bottom + 44 + 20 * (1 + legend.count("<!-- line -->"))
        title = f"{placed(self._forecast.shape)}, {in_words(self._forecast.shape)}"
        of_all = f"{seconds(self._forecast.seconds)} s an iteration, {seconds(self._forecast.low)} to "
        of_all += f"{seconds(self._forecast.high)} in 90 % of the simulations"
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
            'font-family="Helvetica, Arial, sans-serif">',
            f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
            _text(LEFT, 22, title, 14),
            _text(LEFT, 42, of_all, 12, color=GREY),
            *self._axis(bottom),
            *(_text(LEFT - 10, self._top(row) + ROW / 2 + 4, row, 12, "end") for row in self._rows),
            *(self._bar(work, period) for work, period in self._shown),
            legend,
            "</svg>",
        ]
        return "\n".join(parts) + "\n"

    def _row(self, work: Work, period: Period) -> str:
        return FLOW if work.group == FLOW else period.lane or self._row_beside(work.group)

    def _row_beside(self, group: str) -> str:
        """Return the row of work beside others: that of its group, or the first lane in streaming."""
        if self._forecast.shape.takes_turns:
            return "devices"
        return f"{group} 0" if group == "rollout" and self._forecast.shape.num_groups is not None else group

    def _x(self, moment: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (moment - self._begin) / (self._end - self._begin)

    def _top(self, row: str) -> float:
        return TOP + self._rows.index(row) * (ROW + GAP)

    def _bar(self, work: Work, period: Period) -> str:
        x, width = self._x(period.begin), self._x(period.end) - self._x(period.begin)
        color = COMMIT if work.node == "commit" else self._color(work.node)
        shade = 1.0 if work.iteration % 2 == 0 else 0.72
        y = self._top(self._row(work, period))
        label = f"{work.job.name}: {seconds(period.end - period.begin)} s"
        bar = (
            f'<rect x="{x:.1f}" y="{y:g}" width="{max(width, 0.6):.1f}" height="{ROW}" fill="{color}" '
            f'fill-opacity="{shade}"><title>{escape(label)}</title></rect>'
        )
        number = str(work.iteration + 1)
        return bar + (_text(x + width / 2, y + ROW / 2 + 4, number, 11, "middle", "white") if width > 16 else "")

    def _color(self, node: str) -> str:
        return COLORS[self._nodes.index(node) % len(COLORS)]

    def _axis(self, bottom: float) -> list[str]:
        """Return lines at round times and their labels."""
        step = _round_step((self._end - self._begin) / 6)
        parts, moment = [], 0.0
        while moment <= self._end - self._begin:
            x = self._x(self._begin + moment)
            parts.append(f'<path d="M{x:.1f} {TOP - 6} V{bottom:g}" stroke="{FAINT}"/>')
            parts.append(_text(x, bottom + 14, f"{moment:g} s", 11, "middle", GREY))
            moment = round(moment + step, 12)
        return parts

    def _legend(self, y: float) -> str:
        """Return the names of nodes with their colours, in as many lines as they need."""
        x, parts = float(LEFT), []
        for name, color in [*((node, self._color(node)) for node in self._nodes), ("commit", COMMIT)]:
            width = 26 + 6.6 * len(name)
            if x + width > WIDTH - RIGHT:
                x, y = float(LEFT), y + 20
                parts.append("<!-- line -->")
            parts.append(f'<rect x="{x:.1f}" y="{y - 10:g}" width="12" height="12" fill="{color}"/>')
            parts.append(_text(x + 17, y, name, 12))
            x += width
        return "\n".join(parts)


def _round_step(least: float) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that is not below ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * part for part in (1, 2, 5, 10) if power * part >= least)


def _text(x: float, y: float, words: str, size: int, anchor: str = "start", color: str = INK) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:g}" text-anchor="{anchor}" font-size="{size}" fill="{color}">{escape(words)}</text>'
    )
