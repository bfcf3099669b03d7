"""A small policy: an MLP reads the state and gives each dimension of each action in a chunk a token.

``Policy`` has the methods of :class:`~embodyflow.policies.base.ImitatingPolicy`. Its attributes ``config_class``,
``critic_class`` and ``check`` are all that embodyflow needs to know.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
import torch
from pydantic import Field
from safetensors.numpy import save_file
from tensordict import TensorDict
from torch import Tensor, nn

from embodyflow.policies.action_tokens import choose_tokens, evaluate_tokens, imitation_cross_entropy, smoothed_targets
from embodyflow.policies.base import Decision, NormalizationStatistics
from embodyflow.policies.decisions import at_decisions, decisions
from embodyflow.policies.env_match import check_unit_bounds
from embodyflow.policies.policy_config import EmbodiedPolicyConfig, Shape


class Config(EmbodiedPolicyConfig):
    """Sizes of the policy. Those without a default, ``state_dim`` and ``action_dim``, are the environment's."""

    name: str = "examples.own_policy.policy:Policy"
    state_dim: int = Field(ge=1, description="S, features of the state.")
    chunk_size: int = Field(5, ge=1, description="C, actions of one decision.")
    num_bins: int = Field(21, ge=2, description="Values of a token.")
    hidden_size: int = Field(256, ge=1, description="Features of a hidden layer.")

    @property
    def observation_shapes(self) -> dict[str, Shape]:
        """Shape of the state, all that the policy reads."""
        return {"state": (self.state_dim,)}


class Network(nn.Module):
    """Two hidden layers over standardised states."""

    mean: Tensor
    std: Tensor

    def __init__(self, config: Config, num_outputs: int) -> None:
        super().__init__()
        size = config.hidden_size
        self.register_buffer("mean", torch.zeros(config.state_dim))
        self.register_buffer("std", torch.ones(config.state_dim))
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(n, size), nn.GELU()) for n in (config.state_dim, size))
        self.head = nn.Linear(size, num_outputs)

    def forward(self, state: Tensor) -> Tensor:
        """Map states float32 ``[N, S]`` to float32 ``[N, num_outputs]``."""
        hidden = ((state - self.mean) / self.std).clamp(-5, 5).to(self.head.weight.dtype)
        for block in self.blocks:
            hidden = block(hidden)
        outputs: Tensor = self.head(hidden)
        return outputs.float()


class Critic:
    """Values the state, for algorithms that need values, such as PPO."""

    def __init__(self, config: Config, device: str) -> None:
        network = Network(config, 1).to(device)
        self.model: nn.Module = network
        self.blocks, self._device = list(network.blocks), device

    def evaluate(self, batch: TensorDict) -> Tensor:
        """Return the value before each decision, float32 ``[N, T]``; zero where no decision was taken."""
        decided, observation = decisions(batch, ["state"], self._device)
        return at_decisions(self.model(observation["state"]).squeeze(-1), decided, decided)

    def start_from(self, policy_state: Mapping[str, Any]) -> None:
        """Take over all of the policy's weights but the head's."""
        own = {name: value for name, value in self.model.state_dict().items() if name.startswith("head.")}
        self.model.load_state_dict({**policy_state, **own})


class Policy:
    """Samples all tokens of a chunk at once, each from a distribution of its own."""

    config_class = Config
    critic_class = Critic
    token_dtype = np.dtype(np.int64)
    num_imitation_draws = 0

    def __init__(self, config: Config, device: str) -> None:
        self.config, self.horizon = config, config.chunk_size
        self.num_tokens = self.num_draws = config.num_action_tokens
        network = Network(config, self.num_tokens * config.num_bins).to(device)
        self.model: nn.Module = network
        self.blocks, self._device = list(network.blocks), device

    @staticmethod
    def check(config: Config, env: gym.Env[Any, Any]) -> None:
        """Refuse an environment whose actions are not bounded by -1 and 1; shapes are checked already."""
        check_unit_bounds(config, env)

    def encode_instruction(self, instruction: str) -> np.ndarray:
        """Return int64 ``[1]``, padding: the policy reads no instruction."""
        return np.zeros(1, np.int64)

    @torch.inference_mode()
    def act(self, observation: dict[str, np.ndarray], uniforms: np.ndarray | None, temperature: float) -> Decision:
        """Decide for n environments, greedily without uniforms; a row's numbers depend on that row alone."""
        logits = self._logits(torch.from_numpy(observation["state"]).to(self._device))
        draws = None if uniforms is None else torch.from_numpy(uniforms).to(self._device)
        tokens, log_probs = choose_tokens(logits, draws, temperature)
        actions = (2 * tokens + 1) / self.config.num_bins - 1  # centres of the bins
        chunks = actions.unflatten(-1, (self.config.chunk_size, self.config.action_dim))
        return Decision(tokens.cpu().numpy(), log_probs.cpu().numpy(), chunks.cpu().numpy())

    def evaluate(self, batch: TensorDict, temperature: float) -> tuple[Tensor, Tensor]:
        """Return log-probs and entropy of a batch's tokens, float32 ``[N, T, L]``; zero outside its mask."""
        decided, observation = decisions(batch, ["state"], self._device)
        return evaluate_tokens(self._logits(observation["state"]), batch, decided, temperature)

    def export(self, weights: Mapping[str, np.ndarray], folder: Path) -> None:
        """Write ``model.safetensors`` and ``config.json``."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file(dict(weights), folder / "model.safetensors")
        (folder / "config.json").write_text(self.config.model_dump_json(indent=2) + "\n")

    def set_normalization(self, states: Tensor, actions: Tensor) -> None:
        """Standardise by the mean and standard deviation of demonstrated states, float32 ``[n, S]``."""
        network = cast(Network, self.model)
        network.mean.copy_(states.mean(0))
        network.std.copy_(states.std(0, correction=0).clamp(min=1e-2))

    def load_normalization(self, statistics: NormalizationStatistics) -> None:
        """Standardise by the mean and standard deviation of a data set's states."""
        network = cast(Network, self.model)
        network.mean.copy_(statistics.state_mean)
        network.std.copy_(statistics.state_std.clamp(min=1e-2))

    def imitation_loss(
        self, observation: dict[str, Tensor], actions: Tensor, mask: Tensor, sigma: float, uniforms: Tensor
    ) -> Tensor:
        """Return the cross-entropy to the expert's actions, float32 ``[n, C, A]``, smoothed by ``sigma`` bins."""
        positions = ((actions.to(self._device).flatten(1) + 1) * self.config.num_bins - 1) / 2
        logits = self._logits(observation["state"].to(self._device))
        targets = smoothed_targets(positions, self.config.num_bins, sigma)
        return imitation_cross_entropy(logits, targets, mask.to(self._device))

    def _logits(self, state: Tensor) -> Tensor:
        logits: Tensor = self.model(state)
        return logits.unflatten(-1, (self.num_tokens, self.config.num_bins))
