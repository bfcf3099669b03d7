"""Episodes of control go on over iterations, and over the deaths of those who play them: the same to the bit."""

import pytest
from disturbed import PARTS, Disturbed, Outcome, fault
from faulty_nodes import COMMIT, CONTROL_NODES

pytestmark = pytest.mark.integration

JOB = "control"


def test_a_control_run_in_which_parts_die(disturbed: Disturbed, undisturbed: Outcome) -> None:
    steps = [record["rollout/episode_steps"] for record in undisturbed[2]]
    assert steps == [50.0] * 3, "120 steps an iteration: episodes of 50 are open at its end"
    output = disturbed.outlives(
        undisturbed,
        "everything",
        fault("rollout", "rollout/0", iteration=2, delay=0.005),
        fault("train_actor_critic", "trainer/0", iteration=2, delay=0.01),
        fault("old_log_prob", "driver", iteration=3),
    )
    assert "rollout worker 0 died in node rollout and is replaced" in output
    assert "iteration 2 failed and is done again: a worker of the trainer group is gone" in output
    disturbed.runs.assert_nothing_runs(seconds=10)


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("node", [*CONTROL_NODES, COMMIT])
def test_a_part_that_dies_at_a_node(disturbed: Disturbed, undisturbed: Outcome, node: str, part: str) -> None:
    disturbed.outlives(undisturbed, f"{node}-{part.replace('/', '-')}", fault(node, part))
