"""Faults in a control job, whose episodes continue over iterations: the outcome stays bit-identical."""

import pytest
from faulty_nodes import COMMIT, CONTROL_NODES
from faulty_runs import PARTS, FaultyRuns, Outcome, fault

pytestmark = pytest.mark.integration

JOB = "control"


@pytest.mark.slow
def test_a_run_with_faults(faulty_runs: FaultyRuns, undisturbed: Outcome) -> None:
    steps = [record["rollout/episode_steps"] for record in undisturbed[2]]
    assert steps == [50.0] * 3, "120 steps per iteration leave episodes of 50 steps open at its end"
    output = faulty_runs.assert_recovers(
        undisturbed,
        "everything",
        fault("rollout", "rollout/0", iteration=2, delay=0.005),
        fault("train_actor_critic", "trainer/0", iteration=2, delay=0.01),
        fault("old_log_prob", "driver", iteration=3),
    )
    assert "rollout worker 0 died in node rollout and is replaced" in output
    assert "iteration 2 failed and is retried: a worker of the trainer group is gone" in output
    faulty_runs.runs.assert_nothing_runs(seconds=10)


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("node", [*CONTROL_NODES, COMMIT])
def test_a_fault_at_each_node(faulty_runs: FaultyRuns, undisturbed: Outcome, node: str, part: str) -> None:
    faulty_runs.assert_recovers(undisturbed, f"{node}-{part.replace('/', '-')}", fault(node, part))
