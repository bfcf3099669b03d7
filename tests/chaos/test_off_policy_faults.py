"""Faults in off-policy training, whose replay buffer is part of every commit: the outcome stays bit-identical."""

import pytest
from faulty_nodes import COMMIT
from faulty_runs import FaultyRuns, Outcome, fault

pytestmark = [pytest.mark.integration, pytest.mark.slow]

JOB = "off_policy"


def test_a_run_with_faults(faulty_runs: FaultyRuns, undisturbed: Outcome) -> None:
    counts = [record["train/optimizer_steps"] for record in undisturbed[2]]
    assert counts == [20, 120, 120], "100 transitions at the start of the run bring no updates"
    output = faulty_runs.assert_recovers(
        undisturbed,
        "everything",
        fault("rollout", "rollout/0", iteration=2, delay=0.005),
        fault("train", "trainer/0", iteration=2, delay=0.1),
        fault("train", "driver", iteration=3, delay=0.1),
        fault(COMMIT, "trainer/0", iteration=3),
    )
    assert "rollout worker 0 died in node rollout and is replaced" in output
    assert "iteration 2 failed and is retried: a worker of the trainer group is gone" in output
    faulty_runs.runs.assert_nothing_runs(seconds=10)
