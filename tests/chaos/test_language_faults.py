"""Responses of a language model, and the deaths of those who sample, judge and learn from them: the same to the bit."""

import pytest
from disturbed import ITERATIONS, PARTS, Disturbed, Outcome, fault
from faulty_nodes import COMMIT, LANGUAGE_NODES

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

JOB = "language"


def test_a_language_run_in_which_parts_die(disturbed: Disturbed, undisturbed: Outcome) -> None:
    output = disturbed.outlives(
        undisturbed,
        "everything",
        fault("rollout", "rollout/0", iteration=1, delay=0.1),
        fault("reward", "rollout/1", iteration=1),
        fault("train_actor", "trainer/0", iteration=2, delay=0.01),
        fault("advantage", "driver", iteration=3),
    )
    assert "rollout worker 0 died in node rollout and is replaced" in output
    assert "iteration 2 failed and is done again: a worker of the trainer group is gone" in output
    assert "rollout was done before: 64 rows read from disk" in output
    disturbed.runs.assert_nothing_runs(seconds=10)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("node", [*LANGUAGE_NODES, COMMIT])
def test_a_part_that_dies_at_a_node(disturbed: Disturbed, undisturbed: Outcome, node: str, part: str) -> None:
    disturbed.outlives(undisturbed, f"{node}-{part.replace('/', '-')}", fault(node, part))


@pytest.mark.parametrize("node", [*LANGUAGE_NODES, COMMIT])
def test_a_reward_process_that_dies_at_a_node(disturbed: Disturbed, undisturbed: Outcome, node: str) -> None:
    death = fault(node, "rollout/0", below=True)
    disturbed.outlives(undisturbed, f"{node}-reward", death, words=(*ITERATIONS, "reward.manager.name=parallel"))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_has_a_part_of_the_model_dies(disturbed: Disturbed, rank: int) -> None:
    words = ("iterations=3", "trainer.num_ranks=2", "trainer.tensor_parallel_size=2")
    disturbed.run(f"split-{rank}-undisturbed", words=words)
    left_in_peace = disturbed.outcome(f"split-{rank}-undisturbed")
    disturbed.outlives(left_in_peace, f"split-{rank}", fault("train_actor", f"trainer/{rank}", delay=0.01), words=words)
