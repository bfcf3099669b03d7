"""Runs that evaluate beside training have the weights, the ledger and the numbers of runs that wait."""

from pathlib import Path
from typing import Any

import pytest
from agent_jobs import WORDS as AGENT_WORDS
from agent_jobs import run_words
from small_runs import SMALL, SMALL_LANGUAGE, TWO_WORKERS, Runs
from support_path import SUPPORT_PATH
from waiting import finish

from embodyflow.record.ledger import Ledger

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1500)]

JOBS = {
    "embodied": (*SMALL, TWO_WORKERS),
    "language": tuple(SMALL_LANGUAGE),
    "agent": tuple(run_words(*AGENT_WORDS, "rollout.agent.tools=[{function: agent_jobs:look_up, timeout: 60}]")),
}
EVERY = ("iterations=3", "evaluation.every=1")
BESIDE = ("evaluation.beside=true", "evaluation.rows_per_part=2")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, prefect_api: str) -> Runs:
    return Runs(tmp_path_factory.mktemp("beside")).served_by(prefect_api, PYTHONPATH=SUPPORT_PATH)


def outcome_of(runs: Runs, run_id: str, *words: str) -> tuple[Any, ...]:
    """Run to the end; return weights, ledger and metrics in the order of iterations."""
    process = runs.start(*words, f"run_root={runs.root}", f"run_id={run_id}")
    output = finish(process, 700)
    assert process.returncode == 0, output[-4000:]
    folder: Path = runs.root / run_id
    lines = sorted(runs.metrics(run_id), key=lambda line: (line["iteration"], "digests" not in line))
    assert not list((folder / "evaluating").glob("*")) and not list((folder / "evaluations").glob("*"))
    return runs.summary(run_id)["weights_digest"], Ledger(folder / "ledger.jsonl").digest(), lines


@pytest.mark.parametrize("job", JOBS)
def test_the_outcome_is_that_of_a_run_that_waits(runs: Runs, job: str) -> None:
    words = {word.partition("=")[0]: word for word in (*JOBS[job], *EVERY)}.values()
    between = outcome_of(runs, f"{job}-between", *words)
    assert sum("eval/num_goals" in line for line in between[2]) == 4
    assert outcome_of(runs, f"{job}-beside", *words, *BESIDE) == between
    timed = [line for line in runs.records(f"{job}-beside") if "perf/evaluation_seconds" in line]
    assert [line["iteration"] for line in timed] == [0, 1, 2, 3]
