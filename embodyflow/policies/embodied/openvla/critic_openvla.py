"""Critic of OpenVLA, as :class:`~embodyflow.policies.base.Critic`."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict

from embodyflow.policies.decisions import at_decisions, decisions
from embodyflow.policies.embodied.openvla.checkpoint_openvla import Description
from embodyflow.policies.embodied.openvla.configuration_openvla import OpenVLAConfig
from embodyflow.policies.embodied.openvla.modeling_openvla import Backbone, OpenVLAValue, build_model
from embodyflow.policies.embodied.openvla.policy_openvla import describe, image_processor, pixels


class OpenVLACritic:
    """Values the policy's observations, by a copy of its model with a head of one number.

    Args:
        config: Configuration of the policy.
        device: Device of the model.
    """

    def __init__(self, config: OpenVLAConfig, device: str) -> None:
        description, _ = describe(config)
        self.model: torch.nn.Module = OpenVLAValue(self._policy_model(config, description)).to(device)
        self._images, self._config, self._device = image_processor(config, description), config, device

    @staticmethod
    def _policy_model(config: OpenVLAConfig, description: Description) -> Backbone:
        return build_model(description, config.decoding, config.num_action_tokens)

    @property
    def blocks(self) -> Sequence[torch.nn.Module]:
        """The transformer blocks of vision towers and language model."""
        return list(self.model.blocks)  # type: ignore[arg-type]

    def evaluate(self, batch: TensorDict) -> torch.Tensor:
        """Return the value before each decision, float32 ``[N, T]``; zero without a decision."""
        decided, seen = decisions(batch, self._config.observation_keys, self._device)
        values: torch.Tensor = self.model(pixels(self._images, self._config, seen), seen["instruction_ids"])
        return at_decisions(values, decided, decided)

    def start_from(self, policy_state: Mapping[str, Any]) -> None:
        """Take over the policy's weights, except its head."""
        own = self.model.state_dict()
        self.model.load_state_dict({name: policy_state.get(name, value) for name, value in own.items()})
