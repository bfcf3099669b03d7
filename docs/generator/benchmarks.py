"""The page of benchmarks, whose tables are made from the figures in ``benchmarks/results``."""

import re
from pathlib import Path

from docs.generator.benchmark_tables import (
    agents,
    control,
    gpus,
    language,
    learning,
    operations,
    orchestration,
    peers,
    results,
    robots,
    suite,
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"
_FIGURES = re.compile(r"<!-- figures: (?P<name>\w+) -->\n.*?<!-- end -->", re.DOTALL)

_ROOMS = (suite, learning, language, gpus, control, agents, robots, orchestration, operations, peers)
TABLES = {table.__name__: table for room in _ROOMS for table in room.TABLES}
"""The tables by the names that the page marks their places with."""


def page(problems: list[str]) -> str:
    """Return the page with the tables as the figures are now; its text is written by hand.

    Args:
        problems: Takes a line for each file of figures that the page leaves out.
    """
    results.read_so_far.clear()
    text = _FIGURES.sub(lambda found: _between(found["name"]), PAGE.read_text())
    if left_out := sorted({path.stem for path in results.RESULTS.glob("*.json")} - results.read_so_far):
        problems.append(f"no table shows benchmarks/results of {', '.join(left_out)}")
    return text


def _between(name: str) -> str:
    return f"<!-- figures: {name} -->\n\n{TABLES[name]()}\n\n<!-- end -->"
