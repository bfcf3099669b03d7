"""Draw the pictures of the explanation pages: ``python docs/diagrams/draw.py`` writes them to ``docs/images``."""

from collections.abc import Iterable
from pathlib import Path

IMAGES = Path(__file__).resolve().parents[1] / "images"
LINE, GREY = "#4a5568", "#4a5568"
GREEN, BLUE, YELLOW, WHITE = "#e8f4ea", "#e8eefb", "#fdf3d8", "#ffffff"


def text(x: float, y: float, words: str, size: int = 13, anchor: str = "middle", color: str = "#1a202c") -> str:
    """Return a line of text."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}" fill="{color}">{words}</text>'


def box(x: float, y: float, width: float, height: float, lines: Iterable[str], color: str = WHITE) -> str:
    """Return a box with a title and further lines in grey."""
    title, *details = lines
    first = y + height / 2 + 5 - 8 * len(details)
    parts = [f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{color}" stroke="{LINE}"/>']
    parts.append(text(x + width / 2, first, title))
    parts += [text(x + width / 2, first + 16 * (i + 1), each, 11, color=GREY) for i, each in enumerate(details)]
    return "\n".join(parts)


def panel(x: float, y: float, width: float, height: float, title: str, color: str) -> str:
    """Return a coloured background with a title in its upper left corner."""
    rect = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8" fill="{color}"/>'
    return f"{rect}\n{text(x + 12, y + 19, title, 12, 'start', GREY)}"


def arrow(x1: float, y1: float, x2: float, y2: float, *, both: bool = False) -> str:
    """Return an arrow, or one with two heads."""
    ends = ' marker-start="url(#tip)"' if both else ""
    return f'<path d="M{x1:g} {y1:g} L{x2:g} {y2:g}" stroke="{LINE}" fill="none" marker-end="url(#tip)"{ends}/>'


def svg(name: str, width: int, height: int, *parts: str) -> None:
    """Write a picture."""
    tip = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        f'orient="auto-start-reverse"><path d="M0 0 L8 4 L0 8 z" fill="{LINE}"/></marker></defs>'
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="Helvetica, Arial, sans-serif">'
    )
    lines = [head, tip, f'<rect width="{width}" height="{height}" fill="white"/>', *parts, "</svg>"]
    (IMAGES / f"{name}.svg").write_text("\n".join(lines) + "\n")


def planes() -> None:
    """Draw the control plane above the data plane."""
    runs = [("flow run", "an experiment"), ("subflow run", "an iteration"), ("task run", "a node")]
    parts = [
        panel(10, 10, 740, 110, "control plane: Prefect", YELLOW),
        panel(10, 190, 740, 120, "data plane: Ray", BLUE),
    ]
    parts.append(box(30, 45, 150, 55, ("Prefect server", "UI, history, schedules")))
    for i, lines in enumerate(runs):
        x = 230 + 175 * i
        parts.append(box(x, 45, 145, 55, lines))
        parts.append(arrow(x - 28 if i else 182, 72, x - 2, 72, both=not i))
    parts.append(arrow(652, 102, 652, 188))
    parts.append(text(642, 152, "calls: names and numbers", 12, "end", GREY))
    groups: list[tuple[str, ...]] = [
        ("rollout workers", "environments and policy,", "or a generation engine"),
        ("buffers", "one on each Ray node,", "in shared memory"),
        ("trainer ranks", "policy, reference, critic,", "sharded by FSDP"),
    ]
    for i, group in enumerate(groups):
        x = 30 + 250 * i
        parts.append(box(x, 222, 200, 72, group))
        if i:
            parts.append(arrow(x - 48, 258, x - 2, 258, both=True))
            parts.append(text(x - 25, 248, "rows", 11, color=GREY))
            parts.append(text(x - 25, 274, "weights", 11, color=GREY))
    svg("planes", 760, 320, *parts)


def iteration() -> None:
    """Draw the nodes of an iteration of GRPO on robot episodes."""
    rollout = ("rollout", "sampling", "reward", "advantage")
    trainer = ("old_log_prob", "ref_log_prob", "train_actor")
    parts = [panel(10, 10, 494, 92, "rollout workers", GREEN), panel(516, 10, 380, 92, "trainer", BLUE)]
    for i, node in enumerate((*rollout, *trainer, "commit")):
        x = 22 + 124 * i + (4 if i > 3 else 0) + (14 if i > 6 else 0)
        parts.append(box(x, 42, 98, 42, (node,), YELLOW if node == "commit" else WHITE))
        if i:
            parts.append(arrow(x - (40 if i == 7 else 30 if i == 4 else 26), 63, x - 2, 63))
    svg("iteration", 1020, 112, *parts)


def staleness_lanes() -> None:
    """Draw three iterations with ``rollout.max_staleness=1``."""
    rollouts = (("rollout 1", "version 0"), ("rollout 2", "version 0"), ("rollout 3", "version 1"))
    trainings = (
        ("training 1", "makes version 1"),
        ("training 2", "makes version 2"),
        ("training 3", "makes version 3"),
    )
    parts = []
    for row, (lane, first, bars, color) in enumerate(
        (("rollout workers", 0, rollouts, GREEN), ("trainer", 1, trainings, BLUE))
    ):
        y = 16 + row * 58
        parts.append(text(100, y + 27, lane, 12, "end"))
        parts += [box(112 + 120 * (first + i), y, 116, 46, lines, color) for i, lines in enumerate(bars)]
    parts.append(arrow(110, 138, 620, 138))
    parts.append(text(620, 154, "time", 11, "end", GREY))
    svg("staleness_lanes", 640, 162, *parts)


if __name__ == "__main__":
    planes()
    iteration()
    staleness_lanes()
