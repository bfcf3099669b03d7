"""Checks of every policy that sees images: its observations as rows, and rows that do not depend on each other."""

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
    """Turn each observation into a row of three decisions, of which only the middle one counts."""
    columns = {"instruction_ids": torch.from_numpy(observation["instruction_ids"])}
    seen = {name: observation[name] for name in policy.config.observation_keys} | {"action_tokens": tokens}
    for name, values in seen.items():
        columns[name] = torch.zeros(len(tokens), 3, *values.shape[1:], dtype=torch.from_numpy(values).dtype)
        columns[name][:, 1] = torch.from_numpy(values)
    columns["loss_mask"] = torch.zeros(len(tokens), 3, policy.num_tokens, dtype=torch.bool)
    columns["loss_mask"][:, 1] = True
    return TensorDict(columns, batch_size=[len(tokens)])


def assert_rows_are_independent(policy: Any, observation: Mapping[str, Array]) -> None:
    """Check that eight rows give bit-identical decisions in another order, and three of them next to blank rows."""
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


def assert_rows_without_a_decision_take_part(policy: Any, observation: Mapping[str, Array], num_rows: int) -> None:
    """Check that a batch without decisions or rows gives zero log-probs and zero gradients.

    The passes of a sharded model are collectives, so ranks without decisions must take part in them.
    """
    batch = as_batch(policy, observation, policy.act(observation, None, 1.0).tokens)[:num_rows]
    batch["loss_mask"].zero_()
    log_probs, entropy = policy.evaluate(batch, 1.0)
    assert log_probs.shape == entropy.shape == (num_rows, 3, policy.num_tokens) and not log_probs.any()
    log_probs.sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in policy.model.parameters() if p.requires_grad)


class Room(gym.Env):
    """An environment that has spaces and nothing else."""

    def __init__(self, **images: tuple[int, ...]) -> None:
        spaces = {name: Box(0, 255, shape, np.uint8) for name, shape in images.items()}
        self.observation_space = Dict({"state": Box(-1, 1, (5,)), **spaces})
        self.action_space = Box(-1, 1, (3,))
