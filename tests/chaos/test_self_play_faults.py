"""Faults in self-play whose agents have running baselines, which are part of every commit."""

import pytest
from faulty_nodes import COMMIT
from faulty_runs import FaultyRuns, Outcome, fault

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(2400)]

JOB = "self_play"


def test_a_run_with_faults(faulty_runs: FaultyRuns, undisturbed: Outcome) -> None:
    baselines = [record["advantage/baseline_first"] for record in undisturbed[2] if "digests" in record]
    assert len(set(baselines)) == 3 and all(baselines), "every iteration moves the baseline"
    faulty_runs.assert_recovers(
        undisturbed,
        "everything",
        fault("agent_baseline", "trainer/0", iteration=2),
        fault("train_actor", "trainer/0", iteration=2, delay=0.01),
        fault("advantage", "driver", iteration=3),
        fault(COMMIT, "trainer/0", iteration=3),
    )
    faulty_runs.runs.assert_nothing_runs(seconds=10)
