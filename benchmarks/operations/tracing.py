"""What a trace costs: a span, with and without a trace, and all spans of a job's busiest process.

Run ``python -m benchmarks.operations.tracing`` (minutes). With and without a trace take turns. Times of a span are the
fastest of their rounds, because other work on the machine only adds to them. The share is the number of spans that the
process records in an iteration, times what a span costs more with a trace, divided by the time of an iteration. Two
whole runs, one with a trace, differ by more than that without a cause.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from benchmarks.commands import ROOT, run_command
from benchmarks.report import write_report
from embodyflow.process.tracing import recording, span

RESULTS = ROOT / "benchmarks" / "results" / "tracing.json"
NUM_SPANS, ROUNDS = 2000, 50
JOBS = {"embodied": (), "calculator": ("warm_start.until=null", "warm_start.steps=100")}
"""Experiments, and words that make their warm start short."""


def seconds_per_span() -> float:
    """Return the seconds that a span with two arguments takes."""
    began = time.perf_counter()
    for number in range(NUM_SPANS):
        with span("act", "policy", iteration=number, rows=8):
            pass
    return (time.perf_counter() - began) / NUM_SPANS


def measured_span(folder: Path) -> dict[str, float]:
    """Return the µs of a span without and with a trace, whose file goes to a folder."""
    times: dict[str, list[float]] = {"off": [], "on": []}
    for _ in range(ROUNDS):
        for way, each in times.items():
            with nullcontext() if way == "off" else recording(folder, "rollout 0"):
                each.append(seconds_per_span())
    return {f"microseconds_per_span_{way}": round(1e6 * min(each), 2) for way, each in times.items()}


def traced_run(folder: Path, experiment: str, words: Sequence[str], iterations: int) -> list[dict[str, Any]]:
    """Train with a trace; return the events of its file."""
    whole = (f"experiment={experiment}", *words, f"iterations={iterations}", "tracking.trace=true")
    where = (f"run_root={folder}", f"run_id={experiment}")
    run_command([sys.executable, "-m", "flows.grpo", *whole, *where], folder / f"{experiment}.log")
    return list(json.loads((folder / experiment / "trace.json").read_text()))


def busiest_process(events: Sequence[dict[str, Any]], iterations: int) -> dict[str, Any]:
    """Return the process with most spans, and its spans and seconds of an iteration; the first one does not count."""
    names = {each["pid"]: each["args"]["name"] for each in events if each["name"] == "process_name"}
    ends = {each["name"]: each["ts"] for each in events if each["ph"] == "E" and each["name"].startswith("iteration ")}
    first, last = ends["iteration 1"], ends[f"iteration {iterations}"]
    spans = Counter(each["pid"] for each in events if each["ph"] == "B" and first <= each["ts"] < last)
    pid, count = spans.most_common(1)[0]
    seconds = (last - first) / 1e6 / (iterations - 1)
    return {"process": names[pid], "spans": round(count / (iterations - 1), 1), "seconds": round(seconds, 3)}


def main() -> None:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--out", type=Path, default=RESULTS, help="file for the results")
    options = parser.parse_args()
    jobs = {}
    with tempfile.TemporaryDirectory() as folder:
        found = measured_span(Path(folder))
        more = found["microseconds_per_span_on"] - found["microseconds_per_span_off"]
        for experiment, words in JOBS.items():
            events = traced_run(Path(folder), experiment, words, options.iterations)
            busiest = busiest_process(events, options.iterations)
            jobs[experiment] = busiest | {"share": round(busiest["spans"] * more / 1e6 / busiest["seconds"], 6)}
    print(json.dumps({**found, "jobs": jobs}, indent=2))
    write_report(options.out, (), [found], spans_per_round=NUM_SPANS, rounds=ROUNDS, jobs=jobs)


if __name__ == "__main__":
    main()
