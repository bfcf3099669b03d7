"""Whatever dies, the run ends as if nothing had: the same weights, metrics and ledger, to the bit."""

import pytest
from disturbed import ITERATIONS, PARTS, Disturbed, Outcome, fault
from faulty_nodes import COMMIT, NODES

pytestmark = pytest.mark.integration

JOB = "embodied"
AHEAD = (
    *("iterations=4", "rollout.max_staleness=1", "algorithm.old_log_probs=proximal"),
    *("warm_start.steps=100", "env.max_steps=80"),  # so that there is something to learn from in every iteration
)


def test_a_run_in_which_every_part_dies_once(disturbed: Disturbed, undisturbed: Outcome) -> None:
    assert len({record.get("weights_digest") for record in undisturbed[2]}) > 2, "the weights never changed"
    output = disturbed.outlives(
        undisturbed,
        "everything",
        fault("rollout", "rollout/0", iteration=1, delay=0.05),
        fault("train_actor", "trainer/0", iteration=1, delay=0.01),
        fault("old_log_prob", "buffer", iteration=2),
        fault("reward", "rollout/0", iteration=2),
        fault("advantage", "driver", iteration=3),
    )
    assert "rollout worker 0 died in node rollout and is replaced" in output
    assert "iteration 1 failed and is done again: a worker of the trainer group is gone" in output
    assert "rollout was done before: 16 rows read from disk" in output
    disturbed.runs.assert_nothing_runs(seconds=10)


@pytest.fixture(scope="module")
def undisturbed_ahead(disturbed: Disturbed) -> Outcome:
    disturbed.run("undisturbed-ahead", words=AHEAD)
    return disturbed.outcome("undisturbed-ahead")


def test_a_run_with_rollouts_ahead_in_which_every_part_dies(disturbed: Disturbed, undisturbed_ahead: Outcome) -> None:
    """A trainer dies while the next rollout is played, its driver with rows of two iterations on disk."""
    lines = [line for line in undisturbed_ahead[2] if "digests" in line]
    assert len({line["weights_digest"] for line in lines}) == 4, "weights did not change each time"
    assert [line["policy/num_stale_rows"] > 0 for line in lines] == [False, True, True, True]
    assert [line["policy/behavior_kl"] > 1e-6 for line in lines] == [False, True, True, True]
    output = disturbed.outlives(
        undisturbed_ahead,
        "ahead",
        fault("train_actor", "trainer/0", iteration=2, delay=0.01),
        fault("rollout", "rollout/0", iteration=3, delay=0.05),
        fault("train_actor", "driver", iteration=3),
        words=AHEAD,
    )
    assert "iteration 2 failed and is done again: a worker of the trainer group is gone" in output
    assert "rollout was done before: 16 rows read from disk" in output
    disturbed.runs.assert_nothing_runs(seconds=10)


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("node", [*NODES, COMMIT])
def test_a_part_that_dies_at_a_node_with_rollouts_ahead(
    disturbed: Disturbed, undisturbed_ahead: Outcome, node: str, part: str
) -> None:
    disturbed.outlives(undisturbed_ahead, f"ahead-{node}-{part.replace('/', '-')}", fault(node, part), words=AHEAD)


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("node", [*NODES, COMMIT])
def test_a_part_that_dies_at_a_node(disturbed: Disturbed, undisturbed: Outcome, node: str, part: str) -> None:
    disturbed.outlives(undisturbed, f"{node}-{part.replace('/', '-')}", fault(node, part))


@pytest.mark.slow
@pytest.mark.parametrize("node", [*NODES, COMMIT])
def test_an_environment_process_that_dies_at_a_node(disturbed: Disturbed, undisturbed: Outcome, node: str) -> None:
    death = fault(node, "rollout/0", below=True)
    disturbed.outlives(undisturbed, f"{node}-environment", death, words=(*ITERATIONS, "rollout.env_processes=2"))


@pytest.mark.slow
@pytest.mark.parametrize("part", ["rollout/0", "trainer/0"])
@pytest.mark.parametrize("node", ["rollout", "reward", "train_actor"])
def test_a_part_that_stops_answering(disturbed: Disturbed, undisturbed: Outcome, node: str, part: str) -> None:
    disturbed.outlives(undisturbed, f"{node}-{part.replace('/', '-')}-stopped", fault(node, part, signal="SIGSTOP"))


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_trainer_rank_among_others_that_dies(disturbed: Disturbed, rank: int) -> None:
    words = ("iterations=3", "trainer.num_ranks=2")
    disturbed.run(f"two-ranks-{rank}-undisturbed", words=words)
    left_in_peace = disturbed.outcome(f"two-ranks-{rank}-undisturbed")
    death = fault("train_actor", f"trainer/{rank}", delay=0.01)
    disturbed.outlives(left_in_peace, f"two-ranks-{rank}", death, words=words)
