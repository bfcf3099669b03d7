"""Critic of ACT, as :class:`~embodyflow.policies.base.Critic`."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict

from embodyflow.policies.decisions import at_decisions, decisions
from embodyflow.policies.embodied.act.checkpoint_act import describe
from embodyflow.policies.embodied.act.configuration_act import ACTConfig
from embodyflow.policies.embodied.act.modeling_act import ACTValue, take_over
from embodyflow.policies.embodied.act.policy_act import pixels


class ACTCritic:
    """Values the policy's observations, by an encoder of its own with a head of one number.

    Args:
        config: Configuration of the policy.
        device: Device of the model.
    """

    def __init__(self, config: ACTConfig, device: str) -> None:
        # Weights are random even with a checkpoint: `start_from` brings the policy's.
        self._value = ACTValue(config, describe(config)).to(device)
        self.model: torch.nn.Module = self._value
        self._config, self._device = config, device

    @property
    def blocks(self) -> Sequence[torch.nn.Module]:
        """The layers of the encoder."""
        return list(self._value.model.encoder.layers)

    def evaluate(self, batch: TensorDict) -> torch.Tensor:
        """Return the value before each decision, float32 ``[N, T]``; zero without a decision."""
        decided, seen = decisions(batch, self._config.observation_keys, self._device)
        return at_decisions(self.model(seen["state"], pixels(self._config, seen)), decided, decided)

    def start_from(self, policy_state: Mapping[str, Any]) -> None:
        """Take over the weights and statistics of the policy's encoder."""
        take_over(self.model, policy_state)
