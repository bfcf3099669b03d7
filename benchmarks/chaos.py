"""A campaign of random deaths: does every run end with the numbers of one that was left in peace?

    python -m benchmarks.chaos --kills 200

Each run of the small job meets several faults, drawn from a seed: a part (a rollout worker, the trainer, a buffer, the
flow's own process) is killed or stopped at a node, after a delay. A run is resumed when its driver was killed. Results
go to ``benchmarks/results/chaos.json``.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rich.progress import Progress

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "chaos")]

from disturbed import Disturbed, fault  # noqa: E402
from faulty_nodes import NODES  # noqa: E402
from servers import prefect_server  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "chaos.json"
ITERATIONS = 6
FAULTS_PER_RUN = 5
PARTS = ("rollout/0", "rollout/1", "trainer/0", "buffer", "driver")


def draw(rng: random.Random) -> dict[str, Any]:
    """Return a random fault; a part that hangs costs its time limit, so few do."""
    part = rng.choice(PARTS)
    hangs = rng.random() < 0.05 and part not in ("driver", "buffer")
    node, iteration = rng.choice(list(NODES)), rng.randint(1, ITERATIONS)
    return fault(node, part, iteration, "SIGSTOP" if hangs else "SIGKILL", delay=rng.choice((0.0, 0.01, 0.05, 0.2)))


def campaign(kills: int, seed: int, folder: Path) -> dict[str, Any]:
    """Run until so many faults have happened; return the figures."""
    rng = random.Random(seed)
    words = (f"iterations={ITERATIONS}",)
    counts: Counter[str] = Counter()
    differing, seconds = [], []
    (folder / "server").mkdir()
    with prefect_server(folder / "server") as url, Progress() as progress:
        bar = progress.add_task("faults", total=kills)
        disturbed = Disturbed(folder, url)
        began = time.monotonic()
        disturbed.run("undisturbed", words=words)
        alone, expected = time.monotonic() - began, disturbed.outcome("undisturbed")
        while sum(counts.values()) < kills:
            run_id = f"run-{len(seconds)}"
            faults = [draw(rng) for _ in range(FAULTS_PER_RUN)]
            began = time.monotonic()
            disturbed.run(run_id, *faults, words=words)
            seconds.append(time.monotonic() - began)
            marks = folder.glob(f"{run_id}.json.*")
            met = [faults[int(mark.name.rpartition(".")[2])] for mark in marks]
            counts.update(f"{each['part'].partition('/')[0]} {each['signal']} at {each['node']}" for each in met)
            if disturbed.outcome(run_id) != expected:
                differing.append({"run": run_id, "faults": faults})
            disturbed.runs.assert_nothing_runs(seconds=10)
            progress.update(bar, completed=sum(counts.values()))
    return {
        "seed": seed,
        "runs": len(seconds),
        "iterations_per_run": ITERATIONS,
        "faults": sum(counts.values()),
        "faults_by_kind": dict(sorted(counts.items())),
        "runs_that_differ": differing,
        "seconds_undisturbed": round(alone, 1),
        "seconds_disturbed_mean": round(sum(seconds) / len(seconds), 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = campaign(options.kills, options.seed, Path(folder))
    RESULTS.write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps({key: value for key, value in figures.items() if key != "faults_by_kind"}, indent=2))
    return 1 if figures["runs_that_differ"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
