"""Episodes of control go on over iterations, and over the deaths of those who play them: the same to the bit."""

from typing import Any

import pytest
from disturbed import Disturbed, fault
from faulty_nodes import CONTROL_NODES

pytestmark = pytest.mark.integration

PARTS = ("rollout/0", "rollout/1", "trainer/0", "buffer", "driver", "exception")

Outcome = tuple[Any, ...]


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory: pytest.TempPathFactory, prefect_api: str) -> Disturbed:
    return Disturbed(tmp_path_factory.mktemp("control-chaos"), prefect_api, flow="ppo")


@pytest.fixture(scope="module")
def undisturbed(disturbed: Disturbed) -> Outcome:
    disturbed.run("undisturbed")
    outcome = disturbed.outcome("undisturbed")
    steps = [record["rollout/episode_steps"] for record in outcome[2]]
    assert steps == [50.0] * 3, "120 steps an iteration: episodes of 50 are open at its end"
    return outcome


def test_a_control_run_in_which_parts_die(disturbed: Disturbed, undisturbed: Outcome) -> None:
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
@pytest.mark.parametrize("node", CONTROL_NODES)
def test_a_part_that_dies_at_a_node(disturbed: Disturbed, undisturbed: Outcome, node: str, part: str) -> None:
    disturbed.outlives(undisturbed, f"{node}-{part.replace('/', '-')}", fault(node, part))
