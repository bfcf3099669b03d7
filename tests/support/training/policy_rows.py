"""Rows of observations for any policy that acts, and assertions that every such policy passes."""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Dict
from tensordict import TensorDict

Array = np.ndarray


def uniforms_for(policy: Any, num_rows: int) -> Array:
    return np.random.default_rng(1).random((num_rows, policy.num_draws), dtype=np.float32)


def as_batch(policy: Any, observation: Mapping[str, Array], tokens: Array) -> TensorDict:
    """Make each observation a row of three decisions, of which only the middle one was taken."""
    columns = {"instruction_ids": torch.from_numpy(observation["instruction_ids"])}
    seen = {name: observation[name] for name in policy.config.observation_keys} | {"action_tokens": tokens}
    for name, values in seen.items():
        columns[name] = torch.zeros(len(tokens), 3, *values.shape[1:], dtype=torch.from_numpy(values).dtype)
        columns[name][:, 1] = torch.from_numpy(values)
    columns["loss_mask"] = torch.zeros(len(tokens), 3, policy.num_tokens, dtype=torch.bool)
    columns["loss_mask"][:, 1] = True
    return TensorDict(columns, batch_size=[len(tokens)])


def assert_rows_are_independent(policy: Any, observation: Mapping[str, Array]) -> None:
    """Decide for eight rows in another order, and for three of them beside blank rows: all bits stay the same."""
    uniforms = uniforms_for(policy, 8)
    whole = policy.act(observation, uniforms, 1.6)
    order = np.random.default_rng(2).permutation(8)
    shuffled = policy.act({name: values[order] for name, values in observation.items()}, uniforms[order], 1.6)
    blank = np.arange(8) >= 3
    fewer = {name: values.copy() for name, values in observation.items()}
    for values in fewer.values():
        values[blank] = 0
    alone = policy.act(fewer, np.where(blank[:, None], 0, uniforms), 1.6)
    for name in ("tokens", "log_probs", "actions"):
        assert np.array_equal(getattr(shuffled, name), getattr(whole, name)[order])
        assert np.array_equal(getattr(alone, name)[:3], getattr(whole, name)[:3])


def assert_evaluate_agrees_with_act(policy: Any, observation: Mapping[str, Array]) -> None:
    """Evaluate sampled and greedy decisions: their log-probs are those that ``act`` returned."""
    num_rows, config = len(observation["instruction_ids"]), policy.config
    for uniforms in (uniforms_for(policy, num_rows), None):
        decision = policy.act(observation, uniforms, temperature=1.6)
        assert decision.tokens.dtype == policy.token_dtype and len(decision.tokens) == num_rows
        assert decision.log_probs.dtype == decision.actions.dtype == np.float32
        assert decision.log_probs.shape == (num_rows, policy.num_tokens)
        assert decision.actions.shape == (num_rows, config.chunk_size, config.action_dim)
        batch = as_batch(policy, observation, decision.tokens)
        log_probs, entropy = policy.evaluate(batch, temperature=1.6)
        assert log_probs.shape == entropy.shape == batch["loss_mask"].shape
        np.testing.assert_allclose(log_probs[:, 1].detach(), decision.log_probs, atol=2e-5)
        assert not torch.allclose(policy.evaluate(batch, 1.0)[0], log_probs, atol=1e-3), "the temperature counts"
        assert not log_probs[:, [0, 2]].any() and not entropy[:, [0, 2]].any(), "zero outside the mask"
        assert entropy[:, 1].all() and entropy.isfinite().all()


IMITATE_ONLY = {"diffusion": "early.", "act": "model.vae_encoder"}
"""Prefix of the names of a policy's weights that learn from demonstrations and not from RL."""


def assert_blank_rows_take_part(policy: Any, observation: Mapping[str, Array], num_rows: int) -> None:
    """Evaluate rows without a decision, or no rows: results and gradients are zero, and every weight has a gradient.

    A sharded model's passes are collectives, so a rank without decisions must run them too. Weights of
    :data:`IMITATE_ONLY` have no gradient at all.
    """
    batch = as_batch(policy, observation, policy.act(observation, None, 1.0).tokens)[:num_rows]
    batch["loss_mask"].zero_()
    log_probs, entropy = policy.evaluate(batch, 1.0)
    assert log_probs.shape == entropy.shape == (num_rows, 3, policy.num_tokens) and not log_probs.any()
    log_probs.sum().backward()
    weights = {name: value.grad for name, value in policy.model.named_parameters() if value.requires_grad}
    imitating = {name for name in weights if name.startswith(IMITATE_ONLY.get(policy.config.name, "no weight"))}
    assert all(weights[name] is None for name in imitating)
    assert all(grad is not None and not grad.any() for name, grad in weights.items() if name not in imitating)


class Room(gym.Env):
    """An environment of spaces alone."""

    def __init__(self, **images: tuple[int, ...]) -> None:
        spaces = {name: Box(0, 255, shape, np.uint8) for name, shape in images.items()}
        self.observation_space = Dict({"state": Box(-1, 1, (5,)), **spaces})
        self.action_space = Box(-1, 1, (3,))
