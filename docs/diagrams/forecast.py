"""Draw the forecast for 8 to 1,024 GPUs from ``benchmarks/results/forecast.json``.

``python docs/diagrams/forecast.py`` writes it to ``docs/images``.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from draw import GREY, svg, text  # a script of the same folder

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "forecast.json"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 400, 64, 168, 44, 52
COLORS = {"in turns": "#4c78a8", "whole iterations": "#f58518", "streaming": "#54a24b"}
LABELS = {"in turns": "in turns", "whole iterations": "ahead", "streaming": "ahead, streaming"}
FAINT = "#e2e8f0"

Points = Mapping[int, float]


def fastest(rows: Sequence[Mapping[str, object]]) -> dict[str, dict[int, float]]:
    """Return the least seconds by order and number of GPUs."""
    found: dict[str, dict[int, float]] = {order: {} for order in COLORS}
    for row in rows:
        of_order, gpus, seconds = found[str(row["order"])], int(str(row["gpus"])), float(str(row["seconds"]))
        of_order[gpus] = min(seconds, of_order.get(gpus, math.inf))
    return found


def forecast() -> None:
    """Draw seconds of an iteration by GPUs, both on logarithmic axes, with a line for as many times the GPUs."""
    curves = fastest(json.loads(RESULTS.read_text())["devices"])
    gpus = sorted({each for points in curves.values() for each in points})
    most = max(seconds for points in curves.values() for seconds in points.values())
    low, high = 5.0, 10.0 ** math.ceil(math.log10(most))

    def x(number: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(number / gpus[0]) / math.log(gpus[-1] / gpus[0])

    def y(seconds: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * math.log(seconds / low) / math.log(high / low)

    def line(points: Points, color: str, dashes: str = "") -> str:
        path = " L".join(f"{x(number):.1f} {y(seconds):.1f}" for number, seconds in sorted(points.items()))
        return f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="2" stroke-dasharray="{dashes}"/>'

    parts = [text(LEFT, 24, "Seconds of an iteration, forecast: 7B, 8,192 rows of 2,560 tokens", 14, "start")]
    for seconds in (5, 10, 20, 50, 100, 200, 500, 1000):
        if low <= seconds <= high:
            parts.append(f'<path d="M{LEFT} {y(seconds):.1f} H{WIDTH - RIGHT}" stroke="{FAINT}"/>')
            parts.append(text(LEFT - 8, y(seconds) + 4, f"{seconds:,}", 11, "end", GREY))
    for number in gpus:
        parts.append(text(x(number), HEIGHT - BOTTOM + 18, f"{number:,}", 11, color=GREY))
    parts.append(
        text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "GPUs of the assumed kind, 8 to a machine", 12, color=GREY)
    )
    best = min(points[gpus[0]] for points in curves.values())
    parts.append(line({number: best * gpus[0] / number for number in gpus}, "#a0aec0", "5 4"))
    parts.append(
        text(x(gpus[-1]) + 10, y(max(best * gpus[0] / gpus[-1], low)) + 4, "twice the GPUs, half", 12, "start", GREY)
    )
    for order, points in curves.items():
        parts.append(line(points, COLORS[order]))
        parts += [f'<circle cx="{x(n):.1f}" cy="{y(s):.1f}" r="3" fill="{COLORS[order]}"/>' for n, s in points.items()]
        last = max(points)
        label = f"{LABELS[order]}, {points[last]:.0f} s"
        parts.append(text(x(last) + 10, y(points[last]) + 4, label, 12, "start", COLORS[order]))
    svg("forecast", WIDTH, HEIGHT, *parts)


if __name__ == "__main__":
    forecast()
