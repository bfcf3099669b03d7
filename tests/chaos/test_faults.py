"""Faults in an embodied job: weights, metrics and ledger stay bit-identical."""

import pytest
from faulty_nodes import COMMIT, NODES
from faulty_runs import ITERATIONS, PARTS, FaultyRuns, Outcome, fault

pytestmark = pytest.mark.integration

JOB = "embodied"
AHEAD = ("iterations=4", "rollout.max_staleness=1", "algorithm.old_log_probs=proximal")


def test_a_run_with_a_fault_in_every_part(faulty_runs: FaultyRuns, undisturbed: Outcome) -> None:
    output = faulty_runs.assert_recovers(
        undisturbed,
        "everything",
        fault("rollout", "rollout/0", iteration=1, delay=0.05),
        fault("train_actor", "trainer/0", iteration=1, delay=0.01),
        fault("old_log_prob", "buffer", iteration=2),
        fault("reward", "rollout/0", iteration=2),
        fault("advantage", "driver", iteration=3),
    )
    assert "rollout worker 0 died in node rollout and is replaced" in output
    assert "iteration 1 failed and is retried: a worker of the trainer group is gone" in output
    assert "rollout was done before: 16 rows read from disk" in output
    faulty_runs.runs.assert_nothing_runs(seconds=10)


@pytest.fixture(scope="module")
def undisturbed_ahead(faulty_runs: FaultyRuns) -> Outcome:
    faulty_runs.run("undisturbed-ahead", words=AHEAD)
    return faulty_runs.outcome("undisturbed-ahead")


@pytest.mark.slow
def test_a_run_with_rollouts_ahead_and_faults(faulty_runs: FaultyRuns, undisturbed_ahead: Outcome) -> None:
    """The trainer dies during the next rollout, the driver with rows of two iterations on disk."""
    lines = [line for line in undisturbed_ahead[2] if "digests" in line]
    assert [line["policy/num_stale_rows"] > 0 for line in lines] == [False, True, True, True]
    assert [line["policy/behavior_kl"] > 1e-6 for line in lines] == [False, True, True, True]
    output = faulty_runs.assert_recovers(
        undisturbed_ahead,
        "ahead",
        fault("train_actor", "trainer/0", iteration=2, delay=0.01),
        fault("rollout", "rollout/0", iteration=3, delay=0.05),
        fault("train_actor", "driver", iteration=3),
        words=AHEAD,
    )
    assert "iteration 2 failed and is retried: a worker of the trainer group is gone" in output
    assert "rollout was done before: 16 rows read from disk" in output
    faulty_runs.runs.assert_nothing_runs(seconds=10)


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("node", [*NODES, COMMIT])
def test_a_fault_at_each_node_with_rollouts_ahead(
    faulty_runs: FaultyRuns, undisturbed_ahead: Outcome, node: str, part: str
) -> None:
    faulty_runs.assert_recovers(
        undisturbed_ahead, f"ahead-{node}-{part.replace('/', '-')}", fault(node, part), words=AHEAD
    )


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("node", [*NODES, COMMIT])
def test_a_fault_at_each_node(faulty_runs: FaultyRuns, undisturbed: Outcome, node: str, part: str) -> None:
    faulty_runs.assert_recovers(undisturbed, f"{node}-{part.replace('/', '-')}", fault(node, part))


@pytest.mark.slow
@pytest.mark.parametrize("node", [*NODES, COMMIT])
def test_an_environment_process_that_dies_at_a_node(faulty_runs: FaultyRuns, undisturbed: Outcome, node: str) -> None:
    death = fault(node, "rollout/0", below=True)
    faulty_runs.assert_recovers(
        undisturbed, f"{node}-environment", death, words=(*ITERATIONS, "rollout.env_processes=2")
    )


@pytest.mark.slow
@pytest.mark.parametrize("part", ["rollout/0", "trainer/0"])
@pytest.mark.parametrize("node", ["rollout", "reward", "train_actor"])
def test_a_part_that_stops_answering(faulty_runs: FaultyRuns, undisturbed: Outcome, node: str, part: str) -> None:
    faulty_runs.assert_recovers(
        undisturbed, f"{node}-{part.replace('/', '-')}-stopped", fault(node, part, signal="SIGSTOP")
    )


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_trainer_rank_among_others_that_dies(faulty_runs: FaultyRuns, rank: int) -> None:
    words = ("iterations=3", "trainer.num_ranks=2")
    faulty_runs.run(f"two-ranks-{rank}-undisturbed", words=words)
    undisturbed = faulty_runs.outcome(f"two-ranks-{rank}-undisturbed")
    death = fault("train_actor", f"trainer/{rank}", delay=0.01)
    faulty_runs.assert_recovers(undisturbed, f"two-ranks-{rank}", death, words=words)
