"""What a span of a trace costs, with and without a trace.

Run ``python -m benchmarks.operations.tracing`` (seconds). Both ways take turns. Times are the fastest of their rounds,
because other work on the machine only adds to them.
"""

import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

from benchmarks.commands import ROOT
from benchmarks.report import write_report
from embodyflow.process.tracing import recording, span

RESULTS = ROOT / "benchmarks" / "results" / "tracing.json"
NUM_SPANS, ROUNDS = 2000, 50


def seconds_per_span() -> float:
    """Return the seconds that a span with two arguments takes."""
    began = time.perf_counter()
    for number in range(NUM_SPANS):
        with span("act", "policy", iteration=number, rows=8):
            pass
    return (time.perf_counter() - began) / NUM_SPANS


def main() -> None:
    """Measure and write the report."""
    times: dict[str, list[float]] = {"off": [], "on": []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            for way, each in times.items():
                with nullcontext() if way == "off" else recording(Path(folder), "rollout 0"):
                    each.append(seconds_per_span())
    found = {f"microseconds_per_span_{way}": round(1e6 * min(each), 2) for way, each in times.items()}
    print(found)
    write_report(RESULTS, (), [found], spans_per_round=NUM_SPANS, rounds=ROUNDS)


if __name__ == "__main__":
    main()
