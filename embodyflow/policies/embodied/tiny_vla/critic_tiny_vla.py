"""Critic of TinyVLA, as :class:`~embodyflow.policies.base.Critic`."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict

from embodyflow.policies.decisions import at_decisions, decisions
from embodyflow.policies.embodied.tiny_vla.configuration_tiny_vla import TinyVLAConfig
from embodyflow.policies.embodied.tiny_vla.modeling_tiny_vla import TinyVLAValue


class TinyVLACritic:
    """Values the policy's observations, with a network of its own.

    Args:
        config: Configuration of the policy, for its sizes.
        device: Device of the model.
    """

    def __init__(self, config: TinyVLAConfig, device: str) -> None:
        self.model: torch.nn.Module = TinyVLAValue(config).to(device)
        self._keys, self._device = config.observation_keys, device

    @property
    def blocks(self) -> Sequence[torch.nn.Module]:
        """The network's layers."""
        return list(self.model.blocks)  # type: ignore[arg-type]

    def evaluate(self, batch: TensorDict) -> torch.Tensor:
        """Return the value before each decision, float32 ``[N, T]``; zero without a decision."""
        decided, observation = decisions(batch, self._keys, self._device)
        values: torch.Tensor = self.model(observation).squeeze(-1)
        return at_decisions(values, decided, decided)

    def start_from(self, policy_state: Mapping[str, Any]) -> None:
        """Take over the policy's encoder, including the statistics that standardise states."""
        encoder = {name: value for name, value in policy_state.items() if not name.startswith("head.")}
        value_head = {name: value for name, value in self.model.state_dict().items() if name.startswith("value.")}
        self.model.load_state_dict(encoder | value_head)
