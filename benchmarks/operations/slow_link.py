"""Two machines with a slow and lossy link between them: how long do iterations take, and are the weights the same?

    python -m benchmarks.operations.slow_link

The machines are network namespaces of this one, each with a Ray node, and share its cores; so a second machine makes
nothing faster. The slow link delays every packet by 25 ms in each direction and loses 1 % of them. In one job both
machines have a rank of the trainer and a rollout worker; in the other one machine trains alone. Needs root and
``/dev/net/tun``. Results go to ``benchmarks/results/slow_link.json``.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.commands import ROOT, find_test_modules
from benchmarks.report import write_report

find_test_modules()

import network  # noqa: E402
import slow_link  # noqa: E402
from network import Network  # noqa: E402
from prefect_machine import prefect_server_at  # noqa: E402
from ray_machines import SPREAD, RayMachines, ray_machines  # noqa: E402
from slow_link import SLOW, Counts, Quality  # noqa: E402
from small_runs import Runs, assert_trained, training_records  # noqa: E402

RESULTS = ROOT / "benchmarks/results/slow_link.json"
CLUSTERS: dict[str, tuple[int, Quality | None] | None] = {
    "one machine": None,
    "two, fast link": (2, None),
    "two, slow link": (2, SLOW),
}
"""CPUs and link of the second machine of each cluster. All clusters have four CPUs."""
WARM_UP = 1
"""Iterations that are left out: they wait for imports and compilation."""


def measure(runs: Runs, network: Network, folder: Path, num_iterations: int) -> Iterator[dict[str, Any]]:
    """Yield what was measured of each job on each cluster."""
    for num_ranks in (2, 1):
        names = list[str]()
        for title, second in CLUSTERS.items():
            names.append(f"{num_ranks}-{len(names)}")
            where = folder / names[-1]
            where.mkdir()
            with ray_machines(where, network, [2 if second else 4], **SPREAD) as cluster:
                if second:
                    cluster.add(*second)
                words = (f"trainer.num_ranks={num_ranks}", "rollout.num_workers=2", f"iterations={num_iterations}")
                roles = run_on(cluster, runs, names[-1], *words)
                link = cluster.nodes[-1].machine.link
                counts = link.close() if link else Counts()
            measured = summarize(training_records(runs.records(names[-1])))
            same = digests(runs, names[-1]) == digests(runs, names[0])
            facts = {"cluster": title, "ranks": num_ranks, "same_weights": same, "roles": roles, **measured}
            yield facts | {"packets": counts.passed + counts.lost, "lost": counts.lost}


def run_on(cluster: RayMachines, runs: Runs, run_id: str, *words: str) -> list[list[str]]:
    """Run on the head of a cluster; return the parts of the run on each machine."""
    there = runs.on(cluster.nodes[0].machine, **cluster.environment)
    process = there.begin(run_id, *words)
    there.wait_for_commit(run_id, process)
    parts = [sorted(cluster.parts(node, there.root / run_id)) for node in cluster.nodes]
    there.end(process)
    return parts


def summarize(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians of the seconds of an iteration and of its parts."""
    kept = records[WARM_UP:]
    parts = ("iteration", "wait_for_rollout", "train_actor", "commit")
    seconds = {f"{part}_seconds": round(median(each[f"perf/{part}_seconds"] for each in kept), 3) for part in parts}
    steps = median(each["train/optimizer_steps"] for each in kept)
    return {"iterations": len(kept), "optimizer_steps": steps, **seconds}


def digests(runs: Runs, run_id: str) -> list[str]:
    """Return the digests of the weights after each iteration, all of which must have changed them."""
    records = training_records(runs.records(run_id))
    assert_trained(records)
    return [str(record["weights_digest"]) for record in records]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if why := network.missing() or slow_link.missing():
        raise SystemExit(why)
    comparisons = []
    with tempfile.TemporaryDirectory() as name, network.network() as machines:
        folder = Path(name)
        with prefect_server_at(machines.address, folder / "server") as url:
            for facts in measure(Runs(folder, url), machines, folder, arguments.iterations):
                print(facts, flush=True)
                comparisons.append(facts)
    link = {"milliseconds": 1000 * SLOW.seconds, "loss": SLOW.loss, "seed": SLOW.seed}
    write_report(arguments.output, ("ray", "torch"), comparisons, link=link)
    if not all(facts["same_weights"] for facts in comparisons):
        raise SystemExit("the weights differ")


if __name__ == "__main__":
    main()
