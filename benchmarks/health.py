"""Planted collapses and healthy runs: what do the detectors of health catch, and does the run recover by itself?

    python -m benchmarks.health --healthy 5

Two jobs, embodied and language, run to their end with all detectors on. Each planted collapse
(:mod:`benchmarks.planted_collapses`, and a learning rate × 30) is caught if a detector that it should alarm raises an
alarm, and recovered if the run ends within 0.05 of the healthy run's held-out success without a person. Healthy runs
with further seeds count false alarms. Finished runs in the folder are reused. Results go to
``benchmarks/results/health.json``.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from servers import prefect_server  # noqa: E402
from small_runs import SMALL, SMALL_LANGUAGE, Runs  # noqa: E402

from benchmarks.planted_collapses import AFTER_ADVANTAGE, AFTER_ROLLOUT, FIRST_RATES  # noqa: E402
from benchmarks.report import write_report  # noqa: E402
from embodyflow.record.ledger import Ledger  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "health.json"
JOBS: Mapping[str, Sequence[str]] = {"embodied": SMALL, "language": SMALL_LANGUAGE}
RATE = "rate_times_30"
COLLAPSES = (RATE, *AFTER_ADVANTAGE, *AFTER_ROLLOUT)
EXPECTED = {
    RATE: {"kl_runaway", "entropy_collapse", "dead_groups", "spike", "nan"},
    "nan": {"nan"},
    "huge_reward": {"spike", "kl_runaway"},
    "no_entropy": {"entropy_collapse", "kl_runaway", "spike"},
    "slow": {"throughput_drop"},
    "no_success": {"dead_groups"},
}
"""Detectors that each collapse should alarm."""

ROLLING_BACK = ("nan", "spike", "entropy_collapse", "kl_runaway", "dead_groups", "length_drift", "reward_hacking")
NOTIFYING = ("env_faults", "throughput_drop")
WITHIN = 0.05
SUCCESS = "eval/sampled_success_rate"


def settings() -> Iterator[str]:
    """Yield the words that turn all detectors on."""
    for name in ROLLING_BACK:
        yield f"health.{name}.action=roll_back"
        yield f"health.{name}.changes={{trainer.learning_rate:0.1}}"
    yield from (f"health.{name}.action=notify" for name in NOTIFYING)
    yield "health.roll_back.iterations=6"


def words_of(job: str, collapse: str | None, seed: int, iterations: int) -> list[str]:
    """Return the words of a run; ``None`` plants no collapse."""
    rate = FIRST_RATES[job] * (30 if collapse == RATE else 1)
    words = [f"seed={seed}", f"iterations={iterations}", f"trainer.learning_rate={rate}", *settings()]
    if collapse not in (None, RATE):
        words.append(f"pipeline.custom_fn=benchmarks.planted_collapses:{job}_{collapse}")
    return [*JOBS[job], *words, "tracking.tensorboard=false"]


def run(runs: Runs, job: str, collapse: str | None, seed: int, iterations: int) -> dict[str, Any]:
    """Run a job to its end, unless the folder has the result; return the alarms, roll-backs and the final success."""
    run_id = f"{job}-{collapse or 'healthy'}-{seed}"
    result = runs.root.parent / f"{run_id}.json"
    if not result.exists():
        words = {word.partition("=")[0]: word for word in words_of(job, collapse, seed, iterations)}
        process = runs.start(*words.values(), f"run_root={runs.root}", f"run_id={run_id}")
        output = process.communicate()[0]
        (runs.root.parent / f"{run_id}.log").write_text(output)
        result.write_text(json.dumps({"completed": process.returncode == 0, **_outcome(runs, run_id)}))
    return {"job": job, "collapse": collapse, "seed": seed, **json.loads(result.read_text())}


def _outcome(runs: Runs, run_id: str) -> dict[str, Any]:
    ledger = Ledger(runs.root / run_id / "ledger.jsonl")
    evaluated = [line[SUCCESS] for line in runs.records(run_id) if SUCCESS in line]
    return {
        "alarms": [[each.iteration, each.facts["detector"]] for each in ledger.entries if each.kind == "alarm"],
        "roll_backs": len(ledger.roll_backs()),
        "success": evaluated[-1],
    }


def judge(planted: dict[str, Any], healthy: dict[str, Any]) -> dict[str, Any]:
    """Add to a run with a collapse whether it was caught, and whether it recovered."""
    found = {detector for _, detector in planted["alarms"]}
    is_close = planted["completed"] and planted["success"] >= healthy["success"] - WITHIN
    return planted | {"caught": bool(found & EXPECTED[planted["collapse"]]), "recovered": is_close}


def campaign(runs: Runs, options: argparse.Namespace) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Run everything; return the runs with a collapse, judged, and the healthy ones."""
    planted, healthy = [], []
    for job in options.jobs:
        healthy += [run(runs, job, None, seed, options.iterations) for seed in range(1, 1 + options.healthy)]
        reference = next(each for each in healthy if each["job"] == job and each["seed"] == 1)
        for collapse in options.collapses:
            planted.append(judge(run(runs, job, collapse, 1, options.iterations), reference))
            print(json.dumps(planted[-1]), flush=True)
    return planted, healthy


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--healthy", type=int, default=15, help="healthy runs of each job")
    parser.add_argument("--iterations", type=int, default=24)
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--collapses", nargs="*", choices=COLLAPSES, default=list(COLLAPSES))
    parser.add_argument("--folder", type=Path, help="folder to keep the runs in")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file for the results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        (folder / "server").mkdir(parents=True, exist_ok=True)
        with prefect_server(folder / "server") as url:
            modules = os.pathsep.join((str(ROOT), str(ROOT / "tests" / "support")))
            planted, healthy = campaign(Runs(folder).served_by(url, PYTHONPATH=modules), options)
    totals = {
        "planted": len(planted),
        "caught": sum(each["caught"] for each in planted),
        "recovered": sum(each["recovered"] for each in planted),
        "healthy": len(healthy),
        "false_alarms": sum(bool(each["alarms"]) for each in healthy),
    }
    print(json.dumps(totals))
    write_report(
        options.out, ("torch", "prefect", "ray"), [*planted, *healthy], **totals, iterations=options.iterations
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
