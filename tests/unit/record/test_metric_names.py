"""Every metric that the source names has a meaning, and the table holds no name that nothing writes."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from embodyflow.record.metric_names import METRICS, documented

ROOT = Path(__file__).resolve().parents[3]
AREAS = {name.partition("/")[0] for name in METRICS} | {"buffer"}
NOT_WRITTEN = {"buffer/local_hits", "buffer/local_misses", "buffer/remote_reads"}  # only benchmarks ask for these
SHOWN = {"advantage/token", "eval/episodes", "rollout/episode_return"}  # histograms and videos of the trackers
SCORES = {name for name in METRICS if name.startswith("scores/")}  # put together in embodyflow/prompts/scores.py
VALUE = "<value>"


def test_every_metric_in_the_source_is_documented() -> None:
    named = {name for name in names_in_source() if name.partition("/")[0] in AREAS} - NOT_WRITTEN - SHOWN
    missing = [name for name in sorted(named) if not documented(full(name)) and not stands_for_one(name)]
    assert not missing, f"embodyflow/record/metric_names.py lacks {', '.join(missing)}"


def test_no_documented_metric_is_gone() -> None:
    written = {pattern_of(name) for name in names_in_source() if name.rpartition("/")[2] != VALUE}
    open_names = {name for name in names_in_source() if name.rpartition("/")[2] == VALUE}
    gone = [
        name
        for name in sorted(METRICS.keys() - SCORES)
        if not any(re.fullmatch(pattern, name) for pattern in written)
        and re.sub(r"<\w+>", VALUE, name) not in open_names
    ]
    assert not gone, f"nothing writes {', '.join(gone)}"


def test_placeholders_stand_for_any_word() -> None:
    assert documented("perf/train_actor_seconds")
    assert documented("eval/greedy_success_rate/push-v3")
    assert not documented("rollout/luck")


def stands_for_one(name: str) -> bool:
    return any(re.fullmatch(pattern_of(name), each) for each in METRICS)


def full(name: str) -> str:
    """Return the name as ``metrics.jsonl`` has it: a session puts ``perf/`` before those of buffers."""
    return f"perf/{name}" if name.startswith("buffer/") else name


def pattern_of(name: str) -> str:
    return re.escape(full(name)).replace(re.escape(VALUE), ".+")


def names_in_source() -> Iterator[str]:
    """Yield the strings that look like metrics; a formatted value is ``<value>``."""
    for room in ("embodyflow", "tasks"):
        for path in (ROOT / room).rglob("*.py"):
            if path.name != "metric_names.py":
                yield from filter(re.compile(r"[\w<>]+(/[\w@<>]+)+").fullmatch, strings_of(ast.parse(path.read_text())))


def strings_of(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else VALUE for part in node.values)
    else:
        for child in ast.iter_child_nodes(node):
            yield from strings_of(child)
