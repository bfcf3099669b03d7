"""Faults in a language job: the outcome stays bit-identical."""

import pytest
from faulty_nodes import COMMIT, LANGUAGE_NODES
from faulty_runs import ITERATIONS, PARTS, FaultyRuns, Outcome, fault

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

JOB = "language"
INTERRUPTED = (
    *("iterations=4", "rollout.max_staleness=2", "rollout.interrupt.every=4"),
    "algorithm.old_log_probs=proximal",
)


def test_a_run_with_faults(faulty_runs: FaultyRuns, undisturbed: Outcome) -> None:
    output = faulty_runs.assert_recovers(
        undisturbed,
        "everything",
        fault("rollout", "rollout/0", iteration=1, delay=0.1),
        fault("reward", "rollout/1", iteration=1),
        fault("train_actor", "trainer/0", iteration=2, delay=0.01),
        fault("advantage", "driver", iteration=3),
    )
    assert "rollout worker 0 died in node rollout and is replaced" in output
    assert "iteration 2 failed and is retried: a worker of the trainer group is gone" in output
    assert "rollout was done before: 64 rows read from disk" in output
    faulty_runs.runs.assert_nothing_runs(seconds=10)


def test_a_run_with_newer_weights_in_its_responses_and_faults(faulty_runs: FaultyRuns) -> None:
    """Rollout workers die in a segment, the trainer and the driver with segments of two iterations in journals."""
    faulty_runs.run("undisturbed-interrupted", words=INTERRUPTED)
    undisturbed = faulty_runs.outcome("undisturbed-interrupted")
    lines = [line for line in undisturbed[2] if "digests" in line]
    assert [line.get("policy/staleness_max") for line in lines] == [0, 1, 2, 2]
    output = faulty_runs.assert_recovers(
        undisturbed,
        "interrupted",
        fault("rollout", "rollout/0", iteration=1),
        fault("rollout", "rollout/0", iteration=3, delay=0.1),
        fault("train_actor", "trainer/0", iteration=2, delay=0.01),
        fault("train_actor", "driver", iteration=3),
        words=INTERRUPTED,
    )
    assert "rollout worker 0 died in node rollout and is replaced" in output
    assert "iteration 2 failed and is retried: a worker of the trainer group is gone" in output
    faulty_runs.runs.assert_nothing_runs(seconds=10)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("node", [*LANGUAGE_NODES, COMMIT])
def test_a_fault_at_each_node(faulty_runs: FaultyRuns, undisturbed: Outcome, node: str, part: str) -> None:
    faulty_runs.assert_recovers(undisturbed, f"{node}-{part.replace('/', '-')}", fault(node, part))


@pytest.mark.parametrize("node", [*LANGUAGE_NODES, COMMIT])
def test_a_reward_process_dies_at_each_node(faulty_runs: FaultyRuns, undisturbed: Outcome, node: str) -> None:
    death = fault(node, "rollout/0", below=True)
    faulty_runs.assert_recovers(
        undisturbed, f"{node}-reward", death, words=(*ITERATIONS, "reward.manager.name=parallel")
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_a_tensor_parallel_rank_dies(faulty_runs: FaultyRuns, rank: int) -> None:
    words = ("iterations=3", "trainer.num_ranks=2", "trainer.tensor_parallel_size=2")
    faulty_runs.run(f"split-{rank}-undisturbed", words=words)
    undisturbed = faulty_runs.outcome(f"split-{rank}-undisturbed")
    faulty_runs.assert_recovers(
        undisturbed, f"split-{rank}", fault("train_actor", f"trainer/{rank}", delay=0.01), words=words
    )
