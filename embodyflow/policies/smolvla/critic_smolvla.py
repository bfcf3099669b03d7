"""SmolVLA's critic behind the interface of :mod:`embodyflow.policies.base`."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict

from embodyflow.policies.decisions import at_decisions, decisions
from embodyflow.policies.smolvla.configuration_smolvla import SmolVLAConfig
from embodyflow.policies.smolvla.modeling_smolvla import SmolVLAValue
from embodyflow.policies.smolvla.policy_smolvla import describe, pixels


class SmolVLACritic:
    """Values what the policy sees, by a vision-language model of its own and a head of one number.

    Args:
        config: the policy's own.
        device: where the model lies.
    """

    def __init__(self, config: SmolVLAConfig, device: str) -> None:
        self._description, _ = describe(config)
        # Random weights, also beside a checkpoint: the policy's come by `start_from`.
        self.model: torch.nn.Module = SmolVLAValue(self._description, config.train_expert_only).to(device)
        self._config, self._device = config, device

    @property
    def blocks(self) -> Sequence[torch.nn.Module]:
        """The transformer blocks of vision tower and language model."""
        return list(self.model.blocks)  # type: ignore[arg-type]

    def evaluate(self, batch: TensorDict) -> torch.Tensor:
        """Return the value before each decision, float32 ``[N, T]``; zero where none was taken."""
        decided, seen = decisions(batch, self._config.observation_keys, self._device)
        images = pixels(self._config, self._description, seen)
        return at_decisions(self.model(images, seen["instruction_ids"], seen["state"]), decided, decided)

    def start_from(self, policy_state: Mapping[str, Any]) -> None:
        """Take over the policy's weights and statistics, its expert left out."""
        own = self.model.state_dict()
        self.model.load_state_dict({name: policy_state.get(name, value) for name, value in own.items()})
