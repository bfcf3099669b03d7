"""What is asked of every policy that looks at images: what it sees as rows, and rows that mind no others."""

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
    """Make each observation a row of three decisions, of which the middle one was taken."""
    columns = {"instruction_ids": torch.from_numpy(observation["instruction_ids"])}
    seen = {name: observation[name] for name in policy.config.observation_keys} | {"action_tokens": tokens}
    for name, values in seen.items():
        columns[name] = torch.zeros(len(tokens), 3, *values.shape[1:], dtype=torch.from_numpy(values).dtype)
        columns[name][:, 1] = torch.from_numpy(values)
    columns["loss_mask"] = torch.zeros(len(tokens), 3, policy.num_tokens, dtype=torch.bool)
    columns["loss_mask"][:, 1] = True
    return TensorDict(columns, batch_size=[len(tokens)])


def assert_rows_mind_no_others(policy: Any, observation: Mapping[str, Array]) -> None:
    """Have eight rows decided in another order, and three of them beside blank ones: the same to the bit."""
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
    """A sharded model's passes are collectives: without decisions, or rows, they give nothing and gradients of zero."""
    batch = as_batch(policy, observation, policy.act(observation, None, 1.0).tokens)[:num_rows]
    batch["loss_mask"].zero_()
    log_probs, entropy = policy.evaluate(batch, 1.0)
    assert log_probs.shape == entropy.shape == (num_rows, 3, policy.num_tokens) and not log_probs.any()
    log_probs.sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in policy.model.parameters() if p.requires_grad)


class Room(gym.Env):
    """Spaces to be looked at, and nothing behind them."""

    def __init__(self, **images: tuple[int, ...]) -> None:
        spaces = {name: Box(0, 255, shape, np.uint8) for name, shape in images.items()}
        self.observation_space = Dict({"state": Box(-1, 1, (5,)), **spaces})
        self.action_space = Box(-1, 1, (3,))
