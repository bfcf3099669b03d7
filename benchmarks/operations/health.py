"""Planted collapses and healthy runs: what do the detectors of health catch, and does the run recover by itself?

    python -m benchmarks.operations.health --seeds 1 2 --folder /tmp/health

Each collapse of :mod:`benchmarks.operations.planted_collapses` is planted in two jobs, embodied and language. Such a
run is made twice from the same healthy beginning: its detectors only report, or they roll the run back. A collapse is
real if the first run ends more than 0.05 below the healthy one's held-out success, or does not reach its end. It is
caught if a detector raises an alarm in the second run, and recovered if that one ends within 0.05 of the healthy
result. Healthy runs of four kinds count false alarms. Runs take place in one process
(:mod:`benchmarks.operations.watched_run`). Finished runs in the folder are reused. Results go to
``benchmarks/results/health.json``.
"""

import argparse
import json
import multiprocessing
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.commands import ROOT
from benchmarks.operations.planted_collapses import COLLAPSES
from benchmarks.operations.watched_run import WatchedRun
from benchmarks.report import write_report
from embodyflow.config.composition.compose import compose_config
from embodyflow.health.examination import examine

RESULTS = ROOT / "benchmarks" / "results" / "health.json"
FORK = multiprocessing.get_context("fork")
"""Processes that need no second to import what they run."""

WITHIN = 0.05


@dataclass(frozen=True)
class Job:
    """A small job.

    Attributes:
        words: Overrides of the configuration.
        rate: Learning rate.
        begins: First iteration that a fault spoils; ``None`` plants nothing in the job.
    """

    words: Sequence[str]
    rate: float
    begins: int | None = None


JOBS: Mapping[str, Job] = {
    "embodied": Job(
        (
            *("experiment=embodied", "iterations=18", "rollout.num_groups=8", "rollout.group_size=6"),
            *("rollout.chunk_correlation=1", "policy.hidden_size=64", "evaluation.every=4", "evaluation.num_goals=32"),
            "evaluation.video=false",
        ),
        7e-4,
        begins=7,
    ),
    "language": Job(
        (
            *("experiment=math", "iterations=30", "rollout.num_groups=32", "trainer.num_minibatches=2"),
            *("trainer.schedule.name=constant", "policy.scratch.hidden_size=64", "policy.scratch.num_hidden_layers=2"),
            *("warm_start.num_demos=800", "warm_start.steps=200", "warm_start.until=null"),
            *("evaluation.num_prompts=128", "evaluation.every=5"),
        ),
        2.5e-4,
        begins=11,
    ),
    "control": Job(("experiment=reacher", "iterations=25", "rollout.num_steps=128", "trainer.num_minibatches=8"), 3e-4),
    "agent": Job(
        (
            *("experiment=calculator", "iterations=20", "rollout.num_groups=16", "trainer.num_minibatches=2"),
            *("trainer.schedule.name=constant", "policy.scratch.hidden_size=64", "policy.scratch.num_hidden_layers=2"),
            *("warm_start.steps=60", "warm_start.until=null", "evaluation.num_prompts=64", "evaluation.every=10"),
        ),
        3e-4,
    ),
}
ROLLING_BACK = (
    *("nan", "spike", "entropy_collapse", "kl_runaway", "dead_groups", "length_drift", "result_drop"),
    "reward_hacking",
)
NEARLY_THE_SAME = 0.9
"""Factor of the learning rate after findings that may be the world's fault. A rate that is too high shows in the KL."""

SLOW = "throughput_drop"
"""Detector of slow iterations, whose false alarms tell about the machine and are counted apart."""

NOTIFYING = ("env_faults", SLOW, "staleness")


def health_words(job: str, acts: bool) -> Iterator[str]:
    """Yield the words that turn all detectors on: they roll the run back, or only report."""
    for name in ROLLING_BACK:
        if acts:
            yield f"health.{name}.action=roll_back"
            if name != "kl_runaway":  # its finding says how much too high the rate is
                yield f"health.{name}.changes={{trainer.learning_rate:{NEARLY_THE_SAME}}}"
        elif name != "nan":
            yield f"health.{name}.action=notify"
    yield from (f"health.{name}.action=notify" for name in NOTIFYING)
    yield "health.roll_back.iterations=6"
    if job == "control":
        yield "health.entropy_collapse.max_fall=3"


def file_of(folder: Path, job: str, seed: int, collapse: str | None = None, *, acts: bool = False) -> Path:
    """Return the file of a run's result."""
    return folder / f"{job}-{seed}-{collapse or 'healthy'}{'-acts' if acts else ''}.json"


def played(folder: Path, job: str, seed: int, collapse: str | None, *, acts: bool) -> dict[str, Any]:
    """Return the result of a run, which is made in a process of its own unless the folder has it."""
    result = file_of(folder, job, seed, collapse, acts=acts)
    if not result.exists():
        process = FORK.Process(target=play, args=(result, job, seed, collapse, acts))
        process.start()
        process.join()
    return dict(json.loads(result.read_text()))


def play(result: Path, job: str, seed: int, collapse: str | None, acts: bool) -> None:
    """Make a run and write its result; a planted one begins as the healthy one of its seed."""
    folder = result.parent
    planted = COLLAPSES[collapse] if collapse else None
    begins = JOBS[job].begins or 0
    rate = JOBS[job].rate * (planted.rate_factor if planted else 1.0)
    words = [*JOBS[job].words, f"seed={seed}", f"trainer.learning_rate={rate}", *health_words(job, acts)]
    with tempfile.TemporaryDirectory(dir=folder) as checkpoints:
        kept = folder / f"{job}-{seed}"
        run = WatchedRun(words, Path(checkpoints) if planted else kept, planted and planted.fault, begins)
        if planted is None:
            run.begin()
        else:
            healthy = json.loads(file_of(folder, job, seed).read_text())
            run.go_on_from(kept, healthy["records"], begins - 1 if planted.fault else 0)
        end = run.to_the_end()
    outcome = {
        "job": job,
        "seed": seed,
        "collapse": collapse,
        "acts": acts,
        "ended": end,
        "alarms": [[each.iteration, each.detector] for each in run.alarms],
        "roll_backs": [[each.found, each.to] for each in run.roll_backs],
        "success": None if run.config.evaluation is None else _held_out(run),
        "records": run.records,
    }
    result.write_text(json.dumps(outcome))


def _held_out(run: WatchedRun) -> float:
    """Return the mean success of the greedy and of the sampled evaluation."""
    return statistics.mean(rate for mode in ("greedy", "sampled") for rate in run.success(mode))


def judged(healthy: Mapping[str, Any], without: Mapping[str, Any], acting: Mapping[str, Any]) -> dict[str, Any]:
    """Return a planted collapse with what became of it: without health, and with detectors that act."""
    least = healthy["success"] - WITHIN
    return {
        **{name: acting[name] for name in ("job", "collapse", "seed", "alarms", "roll_backs", "ended")},
        "title": COLLAPSES[acting["collapse"]].title,
        "healthy_success": healthy["success"],
        "success_without": without["success"],
        "ended_without": without["ended"],
        "success": acting["success"],
        "real": without["ended"] is not None or without["success"] < least,
        "caught": any(detector not in NOTIFYING for _, detector in acting["alarms"]),
        "recovered": acting["ended"] is None and acting["success"] >= least,
    }


def alarms_in(run: Mapping[str, Any]) -> list[list[Any]]:
    """Return the iterations and names of the alarms that the detectors, as they are now, raise in a run's metrics."""
    job, records = run["job"], run["records"]
    health = compose_config(["run_id=reported", *JOBS[job].words, *health_words(job, acts=False)]).health
    iterations = [each["iteration"] for each in records if "weights_digest" in each]
    return [[index, alarm.detector] for index in iterations for alarm in examine(health, records, index)]


def unspoiled(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return a healthy run with its alarms, those of slow iterations apart."""
    alarms = alarms_in(run)
    return {name: run[name] for name in ("job", "seed", "success")} | {
        "alarms": [each for each in alarms if each[1] != SLOW],
        "slow": [index for index, detector in alarms if detector == SLOW],
    }


def planted_pair(folder: Path, healthy: Mapping[str, Any], collapse: str) -> dict[str, Any]:
    """Return a planted collapse with what became of it; without alarms both runs are the same one."""
    job, seed = healthy["job"], healthy["seed"]
    without = played(folder, job, seed, collapse, acts=False)
    return judged(healthy, without, played(folder, job, seed, collapse, acts=True) if needs_act(without) else without)


def needs_act(without: Mapping[str, Any]) -> bool:
    """Return True if the detectors would roll a run back."""
    return without["ended"] is not None or any(detector not in NOTIFYING for _, detector in alarms_in(without))


def is_finished(folder: Path, job: str, seed: int, collapse: str | None) -> bool:
    """Return True if the folder has the results that belong to a healthy run, or to a planted collapse."""
    exists = file_of(folder, job, seed, collapse).exists()
    if collapse is None or not exists:
        return exists
    without = played(folder, job, seed, collapse, acts=False)
    return not needs_act(without) or file_of(folder, job, seed, collapse, acts=True).exists()


def totals_of(planted: Sequence[Mapping[str, Any]], healthy: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the counts that the page of benchmarks shows; what is caught or recovered counts if the loss is real."""
    real = [each for each in planted if each["real"]]
    return {
        "planted": len(planted),
        "real": len(real),
        "caught": sum(each["caught"] for each in real),
        "recovered": sum(each["recovered"] for each in real),
        "healthy": {job: sum(each["job"] == job for each in healthy) for job in JOBS},
        "false_alarms": {job: sum(each["job"] == job and bool(each["alarms"]) for each in healthy) for job in JOBS},
        "slow": sum(bool(each["slow"]) for each in healthy),
    }


def wanted(options: argparse.Namespace) -> Iterator[tuple[str, int, list[str]]]:
    """Yield job, seed and collapses of the runs to make, or of the finished ones if only these are reported."""
    for seed in dict.fromkeys((*options.seeds, *options.healthy)):
        for job in options.jobs:
            has_collapses = seed in options.seeds and JOBS[job].begins is not None
            runs = [None, *(options.collapses if has_collapses else ())]
            if options.report:
                runs = [each for each in runs if is_finished(options.folder, job, seed, each)]
            elif not has_collapses and seed not in options.healthy:
                continue
            if None in runs:
                yield job, seed, [each for each in runs if each is not None]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="*", default=[1], help="seeds with planted collapses")
    parser.add_argument(
        "--healthy", type=int, nargs="*", default=[], help="seeds of healthy runs, beside those of --seeds"
    )
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--collapses", nargs="*", choices=COLLAPSES, default=list(COLLAPSES))
    parser.add_argument("--folder", type=Path, required=True, help="folder to keep the runs in")
    parser.add_argument("--report", action="store_true", help="make no runs: report those that the folder has")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file for the results")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    planted, healthy = [], []
    for job, seed, collapses in wanted(options):
        reference = played(options.folder, job, seed, None, acts=False)
        healthy.append(unspoiled(reference))
        print(json.dumps(healthy[-1]), flush=True)
        for collapse in collapses:
            planted.append(planted_pair(options.folder, reference, collapse))
            print(json.dumps(planted[-1]), flush=True)
    totals = totals_of(planted, healthy)
    print(json.dumps(totals))
    write_report(options.out, ("torch",), planted, **totals, healthy_runs=healthy)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
