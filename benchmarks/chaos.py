"""A campaign of random deaths: does every run end with the numbers of one that was left in peace?

    python -m benchmarks.chaos --kills 200

Runs of three small jobs, embodied, language and control, two at a time. Each meets several faults, drawn from a seed: a
part (a rollout worker, the trainer, a buffer, the flow's own process) is killed or stopped at a node, after a delay. A
run is resumed when its driver was killed. Compared are weights, metrics, ledger and how many updates the optimizer
counted. Results go to ``benchmarks/results/chaos.json``.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.progress import Progress

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "chaos")]

from disturbed import JOBS, Disturbed, fault  # noqa: E402
from faulty_nodes import CONTROL_NODES, LANGUAGE_NODES, NODES  # noqa: E402
from servers import prefect_server  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "chaos.json"
ITERATIONS = 6
WORDS = (f"iterations={ITERATIONS}",)
FAULTS_PER_RUN = 5
AT_ONCE = 2
PARTS = ("rollout/0", "rollout/1", "trainer/0", "buffer", "driver")
NODES_OF = {"embodied": NODES, "language": LANGUAGE_NODES, "control": CONTROL_NODES}


def draw(rng: random.Random, job: str) -> dict[str, Any]:
    """Return a random fault; a part that hangs costs its time limit, so few do."""
    part = rng.choice(PARTS)
    hangs = rng.random() < 0.05 and part not in ("driver", "buffer")
    node, iteration = rng.choice(list(NODES_OF[job])), rng.randint(1, ITERATIONS)
    return fault(node, part, iteration, "SIGSTOP" if hangs else "SIGKILL", delay=rng.choice((0.0, 0.01, 0.05, 0.2)))


class Contestant:
    """Runs of one job, the first of which is left in peace.

    Args:
        job: key of ``JOBS``.
        folder: for its runs.
        api_url: of a Prefect server.
        seed: of its faults.
    """

    def __init__(self, job: str, folder: Path, api_url: str, seed: int) -> None:
        folder.mkdir()
        self.job, self._folder, self._disturbed = job, folder, Disturbed(folder, api_url, job)
        self._rng = random.Random(f"{seed}-{job}")
        self.seconds: list[float] = []
        self.differing: list[list[dict[str, Any]]] = []

    def run_in_peace(self) -> None:
        """Run it once, for the outcome that all others are to have."""
        began = time.monotonic()
        self._disturbed.run("undisturbed", words=WORDS)
        self.seconds_alone = time.monotonic() - began
        self._expected = self._disturbed.outcome("undisturbed")

    def run(self) -> list[dict[str, Any]]:
        """Run it with faults; return those that happened."""
        faults = [draw(self._rng, self.job) for _ in range(FAULTS_PER_RUN)]
        run_id = f"run-{len(self.seconds)}"
        began = time.monotonic()
        self._disturbed.run(run_id, *faults, words=WORDS)
        self.seconds.append(time.monotonic() - began)
        if self._disturbed.outcome(run_id) != self._expected:
            self.differing.append(faults)
        self._disturbed.runs.assert_nothing_runs(seconds=10)
        return [faults[int(mark.name.rpartition(".")[2])] for mark in self._folder.glob(f"{run_id}.json.*")]


def campaign(kills: int, seed: int, folder: Path) -> dict[str, Any]:
    """Run until so many faults have happened; return the figures."""
    counts: Counter[str] = Counter()
    (folder / "server").mkdir()
    with prefect_server(folder / "server") as url, Progress() as progress, ThreadPoolExecutor() as threads:
        bar = progress.add_task("faults", total=kills)
        turn = threading.Semaphore(AT_ONCE)

        def take_turns(one: Contestant) -> Contestant:
            with turn:
                one.run_in_peace()
            while counts.total() < kills:
                with turn:
                    met = one.run()
                counts.update(f"{one.job}: {each['part'].partition('/')[0]} {each['signal']}" for each in met)
                progress.update(bar, completed=counts.total())
            return one

        contestants = list(threads.map(take_turns, [Contestant(job, folder / job, url, seed) for job in JOBS]))
    return {
        "seed": seed,
        "runs": {one.job: len(one.seconds) for one in contestants},
        "runs_at_once": AT_ONCE,
        "iterations_per_run": ITERATIONS,
        "faults": counts.total(),
        "faults_by_kind": dict(sorted(counts.items())),
        "runs_that_differ": {one.job: one.differing for one in contestants if one.differing},
        "seconds_undisturbed": {one.job: round(one.seconds_alone, 1) for one in contestants},
        "seconds_disturbed_mean": {one.job: round(statistics.mean(one.seconds), 1) for one in contestants},
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
