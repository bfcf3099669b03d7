"""Faults in runs that commit every second iteration: they repeat what no commit has, with the same outcome."""

from pathlib import Path

import pytest
from faulty_runs import FaultyRuns, Outcome, fault

from embodyflow.record.ledger import Ledger
from embodyflow.record.run_folder import RunFolder

pytestmark = pytest.mark.integration

WORDS = ("iterations=5", "trainer.iterations_per_commit=2", "trainer.keep_checkpoints=1")
JOBS = {"control": "train_actor_critic", "off_policy": "train", "embodied": "train_actor"}
"""Node of each job that takes the optimizer steps."""


@pytest.fixture(params=["control", *(pytest.param(job, marks=pytest.mark.slow) for job in ("off_policy", "embodied"))])
def job(request: pytest.FixtureRequest) -> str:
    """A job with open episodes, one with a replay buffer, and one whose episodes end with their iteration."""
    return str(request.param)


@pytest.fixture
def faulty_runs(job: str, tmp_path: Path, prefect_api: str) -> FaultyRuns:
    return FaultyRuns(tmp_path, prefect_api, job)


@pytest.fixture
def undisturbed(faulty_runs: FaultyRuns) -> Outcome:
    faulty_runs.run("undisturbed", words=WORDS)
    return faulty_runs.outcome("undisturbed")


def test_a_run_repeats_the_iterations_that_no_commit_has(
    faulty_runs: FaultyRuns, undisturbed: Outcome, job: str
) -> None:
    folder = RunFolder(faulty_runs.runs.root / "undisturbed")
    commits = [each for each in Ledger(folder.ledger_path).entries if each.kind == "commit"]
    assert [each.iteration for each in commits] == [0, 1, 2, 3, 4, 5]
    assert [each.iteration for each in commits if "checkpoint" in each.facts] == [0, 2, 4, 5]
    output = faulty_runs.assert_recovers(
        undisturbed,
        "killed",
        fault(JOBS[job], "trainer/0", iteration=2),
        fault("rollout", "rollout/0", iteration=3),
        fault(JOBS[job], "driver", iteration=4),
        words=WORDS,
    )
    assert "resumed after iteration 2" in output
    faulty_runs.run("each", words=(*WORDS, "trainer.iterations_per_commit=1"))
    weights, _, metrics = faulty_runs.outcome("each")
    assert (weights, metrics) == (undisturbed[0], undisturbed[2])
    faulty_runs.runs.assert_nothing_runs(seconds=10)
