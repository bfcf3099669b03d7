"""Tests of the noise for action tokens."""

import numpy as np
import pytest
import torch

from embodyflow.policies.action_tokens import sample_tokens
from embodyflow.rollouts.embodied.action_noise import chunk_uniforms
from embodyflow.rollouts.embodied.embodied_rollout import EmbodiedRollout
from embodyflow.seeding import derive_rng

CHUNK, DIMENSIONS, DECISIONS = 5, 4, 20_000
SHAPE = (DECISIONS, CHUNK * DIMENSIONS)


def drawn(correlation: float) -> np.ndarray:
    """Return uniforms ``[decision, action, dimension]``."""
    return chunk_uniforms(derive_rng(0, "noise"), SHAPE, CHUNK, correlation).reshape(-1, CHUNK, DIMENSIONS)


@pytest.mark.parametrize("correlation", [0.0, 0.5, 1.0])
def test_each_draw_is_uniform_and_independent_of_past_decisions(correlation: float) -> None:
    uniforms = drawn(correlation)
    assert uniforms.dtype == np.float32
    assert uniforms.min() >= 0 and uniforms.max() < 1
    flat = uniforms.reshape(DECISIONS, -1)
    tenths = np.stack([np.histogram(column, bins=10, range=(0, 1))[0] for column in flat.T]) / DECISIONS
    assert np.abs(tenths - 0.1).max() < 0.01  # five standard deviations of a share of 0.1 in 20,000 draws
    over_time = (flat[1:] - 0.5).T @ (flat[:-1] - 0.5) / DECISIONS * 12
    assert np.abs(over_time).max() < 0.04


@pytest.mark.parametrize("correlation", [0.0, 0.5, 1.0])
def test_actions_of_a_chunk_are_correlated_and_dimensions_are_not(correlation: float) -> None:
    uniforms = drawn(correlation)
    between_actions = np.corrcoef(uniforms[:, :, 0].T)
    # Correlation of uniforms under a Gaussian copula (Pearson, 1907).
    expected = 6 / np.pi * np.arcsin(correlation / 2)
    assert np.allclose(between_actions[~np.eye(CHUNK, dtype=bool)], expected, atol=0.03)
    between_dimensions = np.corrcoef(uniforms[:, 0].T)
    assert np.abs(between_dimensions[~np.eye(DIMENSIONS, dtype=bool)]).max() < 0.03


def test_without_correlation_the_draws_are_plain_uniforms_of_the_generator() -> None:
    expected = derive_rng(7).random((3, 20), dtype=np.float32)
    assert np.array_equal(chunk_uniforms(derive_rng(7), (3, 20), CHUNK, 0.0), expected)


def test_uniforms_of_the_largest_normals_stay_below_one() -> None:
    class Far:
        def standard_normal(self, shape: tuple[int, ...]) -> np.ndarray:
            return np.full(shape, 9.0)

    assert chunk_uniforms(Far(), (1, 2), 2, 0.5).max() < 1  # type: ignore[arg-type]


def test_tokens_follow_the_policys_distribution_despite_the_correlation() -> None:
    logits = torch.tensor([0.0, 1.0, -1.0, 0.5]).expand(*SHAPE, 4)
    tokens, log_probs = sample_tokens(logits, torch.from_numpy(drawn(0.9).reshape(SHAPE)), 1.6)
    expected = torch.softmax(logits[0, 0] / 1.6, -1)
    shares = torch.stack([(tokens == token).double().mean(0) for token in range(4)], -1)
    assert (shares - expected).abs().max() < 0.02
    assert torch.allclose(log_probs.exp(), expected[tokens])


def test_the_log_probs_of_a_rollout_are_the_policys_own(tiny_config) -> None:
    torch.manual_seed(0)
    rollout = EmbodiedRollout(tiny_config("rollout.chunk_correlation=1.0"), 0, 1)
    rows = rollout.play(rollout.training_episodes(0, 1), "train", (0, 1, "rollout"))
    rollout.close()
    state = torch.from_numpy(rows["state"][0])
    ids = torch.from_numpy(rows["instruction_ids"][:1]).expand(len(state), -1)
    with torch.no_grad():
        logits = rollout.policy.model({"state": state, "instruction_ids": ids})
    tokens = torch.from_numpy(rows["action_tokens"][0])
    log_probs = torch.log_softmax(logits, -1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    mask = rows["loss_mask"][0]
    assert np.allclose(log_probs.numpy()[mask], rows["log_probs"][0][mask], atol=1e-5)
    actions = rows["actions"][rows["loss_mask"].all(-1)]  # an untrained policy's bins are similar within a chunk
    assert np.abs(np.diff(actions, axis=1)).mean() < 0.5 * np.abs(actions).mean()
