"""A campaign of random process deaths: does every run end bit-identical to an undisturbed one?

    python -m benchmarks.operations.chaos --kills 200 --folder /tmp/chaos

The campaign runs four small jobs, two at a time: embodied, language, control and an agent with tools. Each run meets
several faults drawn from a seed: a part (a rollout worker, the trainer, a buffer or the flow's own process) is killed
or stopped at a node, after a delay. A run whose driver was killed is resumed. The script compares weights, metrics,
ledger and the number of optimizer updates. Finished runs in the folder are reused. Results go to
``benchmarks/results/chaos.json``.
"""

import argparse
import json
import random
import shutil
import statistics
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from rich.progress import Progress

from benchmarks.commands import ROOT, find_test_modules

find_test_modules()

from faulty_nodes import CONTROL_NODES, LANGUAGE_NODES, NODES  # noqa: E402
from faulty_runs import FaultyRuns, fault  # noqa: E402
from servers import prefect_server  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "chaos.json"
ITERATIONS = 6
WORDS = (f"iterations={ITERATIONS}",)
FAULTS_PER_RUN = 5
AT_ONCE = 2
PARTS = ("rollout/0", "rollout/1", "trainer/0", "buffer", "driver")
NODES_OF = {"embodied": NODES, "language": LANGUAGE_NODES, "control": CONTROL_NODES, "agent": LANGUAGE_NODES}


def draw(rng: random.Random, job: str) -> dict[str, Any]:
    """Return a random fault; only few parts hang, because each of them costs its full timeout."""
    part = rng.choice(PARTS)
    hangs = rng.random() < 0.05 and part not in ("driver", "buffer")
    node, iteration = rng.choice(list(NODES_OF[job])), rng.randint(1, ITERATIONS)
    return fault(node, part, iteration, "SIGSTOP" if hangs else "SIGKILL", delay=rng.choice((0.0, 0.01, 0.05, 0.2)))


class Contestant:
    """The runs of one job; their results are in the folder.

    Args:
        job: Key of ``NODES_OF``.
        folder: Folder of the campaign.
        api_url: API address of a Prefect server.
        seed: Seed of the faults.
    """

    def __init__(self, job: str, folder: Path, api_url: str, seed: int) -> None:
        self.job, self._folder, self._seed = job, folder / job, seed
        self._folder.mkdir(exist_ok=True)
        self._runs = FaultyRuns(self._folder, api_url, job)

    def results(self) -> list[dict[str, Any]]:
        """Return faults and seconds of each run so far, and whether it ended like the undisturbed run."""
        return [json.loads(file.read_text()) for file in sorted(self._folder.glob("*.result"))]

    def run(self) -> None:
        """Run the job once more; the first run has no faults."""
        done = len(self.results())
        run_id = f"run-{done}" if done else "undisturbed"
        rng = random.Random(f"{self._seed}-{self.job}-{done}")
        faults = [draw(rng, self.job) for _ in range(FAULTS_PER_RUN if done else 0)]
        self._forget(run_id)
        began = time.monotonic()
        self._runs.run(run_id, *faults, words=WORDS)
        seconds = time.monotonic() - began
        self._runs.runs.assert_nothing_runs(seconds=10)
        same = self._runs.outcome(run_id) == self._runs.outcome("undisturbed")
        met = [faults[int(mark.name.rpartition(".")[2])] for mark in self._folder.glob(f"{run_id}.json.*")]
        result = {"faults": met, "same": same, "seconds": seconds}
        (self._folder / f"{run_id}.result").write_text(json.dumps(result))

    def _forget(self, run_id: str) -> None:
        """Remove the remains of a run from a campaign that was stopped."""
        shutil.rmtree(self._runs.runs.root / run_id, ignore_errors=True)
        for mark in self._folder.glob(f"{run_id}.json.*"):
            mark.unlink()


def campaign(kills: int, seed: int, folder: Path) -> dict[str, Any]:
    """Run jobs until ``kills`` faults have happened; return the figures."""
    (folder / "server").mkdir(exist_ok=True)
    with prefect_server(folder / "server") as url, Progress() as progress, ThreadPoolExecutor(AT_ONCE) as threads:
        bar = progress.add_task("faults", total=kills)
        contestants = [Contestant(job, folder, url, seed) for job in NODES_OF]
        running: dict[Future[None], Contestant] = {}
        while (met := sum(len(result["faults"]) for one in contestants for result in one.results())) < kills:
            progress.update(bar, completed=met)
            idle = sorted(set(contestants) - set(running.values()), key=lambda one: len(one.results()))
            running |= {threads.submit(one.run): one for one in idle[: AT_ONCE - len(running)]}
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                running.pop(future)
                future.result()
        for future in running:
            future.result()
    return figures_of({one.job: one.results() for one in contestants}, seed)


def figures_of(results: dict[str, list[dict[str, Any]]], seed: int) -> dict[str, Any]:
    """Return the content of the results file."""
    kinds = Counter(
        f"{job}: {fault['part'].partition('/')[0]} {fault['signal']}"
        for job, runs in results.items()
        for run in runs
        for fault in run["faults"]
    )
    peaceful = {job: [run["seconds"] for run in runs if not run["faults"]] for job, runs in results.items()}
    disturbed = {job: [run["seconds"] for run in runs if run["faults"]] for job, runs in results.items()}
    return {
        "seed": seed,
        "runs": {job: len(seconds) for job, seconds in disturbed.items()},
        "runs_at_once": AT_ONCE,
        "iterations_per_run": ITERATIONS,
        "faults": kinds.total(),
        "faults_by_kind": dict(sorted(kinds.items())),
        "runs_that_differ": [(job, run["faults"]) for job, runs in results.items() for run in runs if not run["same"]],
        "seconds_undisturbed": {job: round(seconds[0], 1) for job, seconds in peaceful.items() if seconds},
        "seconds_disturbed_mean": {
            job: round(statistics.mean(seconds), 1) for job, seconds in disturbed.items() if seconds
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, required=True, help="folder of the runs")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    figures = campaign(options.kills, options.seed, options.folder)
    RESULTS.write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps({key: value for key, value in figures.items() if key != "faults_by_kind"}, indent=2))
    return 1 if figures["runs_that_differ"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
