"""Weights and batches in the layout of Stable-Baselines3 and in ours."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from torch import nn

from embodyflow.training.off_policy.replay.replay_buffer import Transitions

SIZE, GAMMA = 8, 0.9


def linear_layers(network: nn.Module) -> list[nn.Linear]:
    return [each for each in network.modules() if isinstance(each, nn.Linear)]


def copy_critics(ours: Any, critic: Any) -> None:
    """Load the weights of SB3's critics into our ensemble."""
    layers = list(zip(*(linear_layers(network) for network in critic.q_networks), strict=True))
    for block, members in zip([*(block[0] for block in ours.blocks), ours.value], layers, strict=True):
        block.load_state_dict(
            {
                "weight": torch.stack([each.weight.detach().T for each in members]),
                "bias": torch.stack([each.bias.detach()[None] for each in members]),
            }
        )


def new_batch() -> tuple[Transitions, ReplayBufferSamples]:
    """Return a batch of ``SIZE`` transitions in our layout and in SB3's; two of them are terminal."""
    draws = np.random.default_rng(0)
    state, next_state = (torch.from_numpy(draws.normal(size=(SIZE, 3)).astype(np.float32)) for _ in range(2))
    action = torch.from_numpy(draws.uniform(-1, 1, (SIZE, 1)).astype(np.float32))
    reward = torch.from_numpy(draws.normal(size=SIZE).astype(np.float32))
    done = torch.tensor([True] * 2 + [False] * (SIZE - 2))
    ours = Transitions(state, action, reward, GAMMA * (~done).float(), next_state)
    return ours, ReplayBufferSamples(state, action, next_state, done[:, None].float(), reward[:, None])


def drawing(noise: torch.Tensor) -> Any:
    """Return a generator whose standard normals are the noise."""
    return SimpleNamespace(standard_normal=lambda shape, dtype: noise.numpy().reshape(shape).astype(dtype))
