"""A campaign of environment faults: does the run end bit-identical to an undisturbed one?

    python -m benchmarks.robots.env_faults --faults 100

The script runs the tests' small job twice, as a whole flow. The undisturbed run has its environments in the rollout
workers. The other run has them in separate processes, in which episodes randomly kill their process, abort, hang (also
in native code that holds the interpreter lock) or return a reward of NaN, until the given number of faults has
happened. Weights and metrics must be bit-identical, and no process may be left behind. Results go to
``benchmarks/results/env_faults.json``.
"""

import argparse
import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.commands import ROOT, find_test_modules

find_test_modules()

from faulty_envs import fault_marks  # noqa: E402
from servers import prefect_server  # noqa: E402
from small_runs import Runs  # noqa: E402
from support_path import SUPPORT_PATH  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "env_faults.json"
KINDS = ("kill", "abort", "hang", "hang in native code", "nan reward")
ITERATIONS, RATE, CHUNK_SIZE = 8, 0.5, 5
FAULTY = (
    "env.id=faulty_metaworld:FaultyMetaWorld-v0",
    "env.max_restarts=1000",
    f"iterations={ITERATIONS}",
    "seed=7",
    f"policy.chunk_size={CHUNK_SIZE}",
)
ISOLATED = ("rollout.env_processes=4", "env.step_timeout=1.0")


def play(runs: Runs, run_id: str, plan: dict[str, Any], *words: str) -> tuple[float, Counter[str]]:
    """Run the small job with the faults of a plan; return its seconds and the number of faults by kind."""
    path = runs.root.parent / f"{run_id}.json"
    path.write_text(json.dumps(plan))
    began = time.monotonic()
    output = runs.run(run_id, *FAULTY, f"+env.kwargs.plan={path}", *words)
    seconds = time.monotonic() - began
    (runs.root.parent / f"{run_id}.log").write_text(output)
    runs.assert_nothing_runs(seconds=10)
    return seconds, Counter(mark.name.rpartition("-")[2] for mark in fault_marks(path))


def campaign(folder: Path, faults: int) -> dict[str, Any]:
    """Run the job without and with faults; return the comparison."""
    (folder / "server").mkdir()
    with prefect_server(folder / "server") as url:
        runs = Runs(folder).served_by(url, PYTHONPATH=SUPPORT_PATH)
        runs.seconds = 800.0
        peaceful, _ = play(runs, "undisturbed", {})
        random_faults = {"rate": RATE, "most": faults, "kinds": KINDS, "chunk_size": CHUNK_SIZE}
        seconds, kinds = play(runs, "disturbed", random_faults, *ISOLATED)
    counts: Counter[str] = Counter()
    for record in runs.records("disturbed"):
        counts.update({name: int(value) for name, value in record.items() if name.startswith("perf/env_")})
    counts.pop("perf/env_steps_per_second", None)
    digests = {run_id: runs.summary(run_id)["weights_digest"] for run_id in ("undisturbed", "disturbed")}
    return {
        "faults": kinds.total(),
        "faults_by_kind": dict(sorted(kinds.items())),
        "counted": dict(sorted(counts.items())),
        "weights_digest": digests,
        "same_weights": digests["undisturbed"] == digests["disturbed"],
        "same_metrics": runs.metrics("undisturbed") == runs.metrics("disturbed"),
        "processes_left": len(runs.processes()),
        "seconds_undisturbed": round(peaceful, 1),
        "seconds_disturbed": round(seconds, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--folder", type=Path, help="folder to keep the runs in")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        figures = campaign(folder, options.faults)
    RESULTS.write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures, indent=2))
    good = figures["same_weights"] and figures["same_metrics"] and figures["faults"] == options.faults
    return 0 if good and not figures["processes_left"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
