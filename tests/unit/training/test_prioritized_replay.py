"""Prioritised replay: draws in proportion to errors, importance weights, and runs that resume with the same bits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from off_policy_runs import OffPolicyRun

from embodyflow.algorithms.off_policy import critic_loss, squared_errors
from embodyflow.config.composition.compose import compose_config
from embodyflow.config.robots.prioritized import PrioritizedConfig
from embodyflow.data.tables import digest_of
from embodyflow.errors import ConfigError, DamageError
from embodyflow.training.off_policy.replay.priorities import PRIORITIES_FILE, SMALLEST_ERROR, Priorities

WORDS = ("off_policy.prioritized={exponent:0.7,correction:0.5}",)


def filled(errors: list[float], capacity: int = 8, **settings: float) -> Priorities:
    priorities = Priorities(PrioritizedConfig(**settings), capacity)
    priorities.extend(len(errors))
    kept = np.arange(len(errors))[-capacity:]
    priorities.update(kept, np.array(errors)[kept])
    return priorities


def test_transitions_are_drawn_in_proportion_to_powers_of_their_errors() -> None:
    priorities = filled([1.0, 4.0, 0.0, 9.0], exponent=0.5, correction=1.0)
    drawn, weights = priorities.sample(np.random.default_rng(0), 60_000)
    powers = np.sqrt(np.array([1.0, 4.0, 0.0, 9.0]) + SMALLEST_ERROR)
    counts = np.bincount(drawn, minlength=4)
    np.testing.assert_allclose(counts / 60_000, powers / powers.sum(), atol=1e-3)  # of stratified draws
    by_index = {int(index): weight for index, weight in zip(drawn, weights, strict=True)}
    rarest = powers[[index for index in range(4) if counts[index]]].min()
    assert by_index == pytest.approx({index: rarest / powers[index] for index in by_index})


def test_a_new_transition_has_the_largest_priority_so_far() -> None:
    priorities = filled([0.1, 5.0, 0.1], exponent=1.0, correction=0.0)
    priorities.extend(4)
    priorities.update(np.array([1]), np.array([0.1]))  # the largest so far stays
    drawn, weights = priorities.sample(np.random.default_rng(0), 5300)
    assert abs(np.mean(drawn == 3) - 5 / 5.3) < 1e-3 and (weights == 1).all()


def test_the_oldest_give_way() -> None:
    priorities = filled([1.0] * 11, capacity=5, exponent=1.0)
    drawn, _ = priorities.sample(np.random.default_rng(0), 1000)
    assert set(drawn.tolist()) == {6, 7, 8, 9, 10}
    priorities.extend(13)
    drawn, _ = priorities.sample(np.random.default_rng(0), 1000)
    assert set(drawn.tolist()) == {8, 9, 10, 11, 12}


def test_the_last_error_of_an_index_counts() -> None:
    twice, once = filled([1.0, 1.0], exponent=1.0), filled([1.0, 1.0], exponent=1.0)
    twice.update(np.array([0, 1, 0]), np.array([3.0, 3.0, 0.5]))
    once.update(np.array([0, 1]), np.array([0.5, 3.0]))
    draws = [each.sample(np.random.default_rng(1), 64) for each in (twice, once)]
    assert np.array_equal(draws[0][0], draws[1][0]) and np.array_equal(draws[0][1], draws[1][1])


@given(st.integers(1, 40), st.integers(1, 90), st.integers(0, 999))
def test_sums_and_draws_hold_for_any_history(capacity: int, length: int, seed: int) -> None:
    rng, priorities = np.random.default_rng(seed), Priorities(PrioritizedConfig(), capacity)
    for until in range(1, length + 1, 7):
        priorities.extend(until)
        oldest = max(0, until - capacity)
        indices, weights = priorities.sample(rng, 16)
        assert (indices >= oldest).all() and (indices < until).all() and weights.max() == 1 and (weights > 0).all()
        priorities.update(indices, rng.exponential(size=16) ** 8)
    leaves = priorities._tree[priorities._num_leaves :]
    assert priorities._tree[1] == pytest.approx(leaves.sum()) and np.count_nonzero(leaves) <= capacity


def test_a_checkpoint_restores_the_draws(tmp_path: Path) -> None:
    one, other = filled([0.3, 2.0, 7.0, 0.1, 5.0], capacity=4), Priorities(PrioritizedConfig(), 4)
    one.save(tmp_path)
    other.load(tmp_path)
    for priorities in (one, other):
        priorities.extend(6)
    first, second = (each.sample(np.random.default_rng(3), 32) for each in (one, other))
    assert np.array_equal(first[0], second[0]) and np.array_equal(first[1], second[1])
    (tmp_path / PRIORITIES_FILE).write_bytes((tmp_path / PRIORITIES_FILE).read_bytes()[:-8])
    with pytest.raises(DamageError, match="is damaged"):
        other.load(tmp_path)


def test_weights_are_factors_of_the_squared_errors() -> None:
    values, targets, weights = (
        torch.tensor([[1.0, 2.0], [0.0, 5.0]]),
        torch.tensor([0.0, 1.0]),
        torch.tensor([1.0, 0.5]),
    )
    assert squared_errors(values, targets, weights) == (1 + 0.5) / 2 + 0.5 * 16 / 2
    assert critic_loss(values, targets, weights) == squared_errors(values, targets, weights) / 2
    assert squared_errors(values, targets, torch.ones(2)) == squared_errors(values, targets)


@pytest.mark.parametrize("algorithm", ["sac", "td3", "crossq"])
def test_a_resumed_run_ends_with_the_same_bits(algorithm: str, tmp_path: Path) -> None:
    words = (f"algorithm={algorithm}", *WORDS)
    whole, killed = OffPolicyRun(tmp_path / "whole", words), OffPolicyRun(tmp_path / "killed", words)
    whole.iterate(range(1, 6))
    killed.iterate(range(1, 4))
    killed.gather(4)
    killed.train(4)  # the process dies before its commit
    killed.close()
    again = OffPolicyRun(tmp_path / "killed", words, last=3)
    again.iterate(range(4, 6))
    assert again.trainer.fingerprint() == whole.trainer.fingerprint()
    files = [(run.checkpoint(5) / PRIORITIES_FILE).read_bytes() for run in (whole, again)]
    assert files[0] == files[1] and len(np.unique(np.load(whole.checkpoint(5) / PRIORITIES_FILE))) > 10
    whole.close(), again.close()


def test_priorities_change_what_is_learned_and_errors_are_no_metric(tmp_path: Path) -> None:
    runs: dict[str, Any] = {}
    for name, words in {"uniform": (), "prioritized": WORDS}.items():
        runs[name] = OffPolicyRun(tmp_path / name, words)
        metrics = runs[name].iterate(range(1, 4))
        assert "errors" not in metrics and np.isfinite(metrics["critic/loss"].value)
    digests = [digest_of(run.trainer.weights()) for run in runs.values()]
    assert digests[0] != digests[1]
    for run in runs.values():
        run.close()


def test_a_run_goes_on_with_the_checkpoint_of_one_that_drew_uniformly(tmp_path: Path) -> None:
    uniform = OffPolicyRun(tmp_path / "run")
    uniform.iterate(range(1, 4))
    uniform.close()
    run = OffPolicyRun(tmp_path / "run", WORDS, last=3)
    run.iterate(range(4, 5))
    length, largest, *leaves = np.load(run.checkpoint(4) / PRIORITIES_FILE)
    assert length == 64 and len(leaves) == 60 and largest >= 1
    run.close()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["off_policy.prioritized.exponent=0"], "off_policy.prioritized.exponent=0: input should be greater than 0"),
        (["off_policy.prioritized.correction=2"], "off_policy.prioritized.correction=2"),
        (
            ["off_policy.prioritized={}", "experiment=push", "algorithm=rlpd"],
            "off_policy.prioritized: must be null with job=embodied; allowed is a control job",
        ),
        (
            ["off_policy.prioritized={}", "experiment=fetch_reach"],
            "off_policy.hindsight: must be null with off_policy.prioritized",
        ),
    ],
)
def test_mistakes_are_one_line(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose_config(["experiment=pendulum", *words] if "experiment" not in " ".join(words) else words)
    assert message in str(caught.value) and "\n" not in str(caught.value)
