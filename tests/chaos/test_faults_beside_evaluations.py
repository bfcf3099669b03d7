"""Faults while a version is evaluated beside training: weights, ledger and numbers stay those of a run that waits."""

import pytest
from faulty_runs import FaultyRuns, Outcome, fault

pytestmark = [pytest.mark.integration, pytest.mark.slow]

JOB = "control"
WORDS = ("iterations=3", "evaluation.every=1", "evaluation.num_episodes=24", "rollout.num_workers=2")
BESIDE = (*WORDS, "evaluation.beside=true")


def in_order(outcome: Outcome) -> Outcome:
    """Return an outcome with its lines in the order of iterations: an evaluation may end after the next iteration."""
    weights, ledger, lines = outcome
    return weights, ledger, sorted(lines, key=lambda line: (line["iteration"], "digests" not in line))


@pytest.fixture(scope="module")
def between(faulty_runs: FaultyRuns) -> Outcome:
    """The outcome of a run that waits for its evaluations."""
    faulty_runs.run("between", words=WORDS)
    outcome = in_order(faulty_runs.outcome("between"))
    returns = [line["eval/return"] for line in outcome[2] if "eval/return" in line]
    assert len(set(returns)) == 4, "the returns depend on the weights"
    return outcome


@pytest.mark.parametrize("part", ["rollout/0", "trainer/0", "driver"])
def test_a_death_while_rollout_workers_evaluate(faulty_runs: FaultyRuns, between: Outcome, part: str) -> None:
    name = f"beside-{part.replace('/', '-')}"
    planned = fault("train_actor_critic", part, iteration=2, delay=0.02)
    faulty_runs.run(name, planned, words=(*BESIDE, "evaluation.rows_per_part=2"))
    assert faulty_runs.num_faults(name) == 1
    assert in_order(faulty_runs.outcome(name)) == between


@pytest.mark.parametrize("part", ["evaluation/0", "driver"])
def test_a_death_while_a_worker_of_its_own_evaluates(faulty_runs: FaultyRuns, between: Outcome, part: str) -> None:
    name = f"own-{part.replace('/', '-')}"
    planned = fault("train_actor_critic", part, iteration=2, delay=0.02)
    faulty_runs.run(name, planned, words=(*BESIDE, "evaluation.own_worker=true"))
    assert faulty_runs.num_faults(name) == 1
    assert in_order(faulty_runs.outcome(name)) == between
