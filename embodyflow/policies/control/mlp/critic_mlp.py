"""Critic of a policy of small MLPs, as :class:`~embodyflow.policies.base.Critic`."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict

from embodyflow.policies.control.mlp.configuration_mlp import MLPConfig
from embodyflow.policies.control.mlp.modeling_mlp import MLPValue


class MLPCritic:
    """Values states with a network of its own.

    Args:
        config: Configuration of the policy, for its sizes.
        device: Device of the model.
    """

    def __init__(self, config: MLPConfig, device: str) -> None:
        self.model: torch.nn.Module = MLPValue(config).to(device)
        self._device = device

    @property
    def blocks(self) -> Sequence[torch.nn.Module]:
        """The network's layers."""
        return list(self.model.blocks)  # type: ignore[arg-type]

    def evaluate(self, batch: TensorDict) -> torch.Tensor:
        """Return the value before each decision, float32 ``[N, T]``; zero without a decision."""
        values: torch.Tensor = self.model(batch["state"].to(self._device))
        return values.where(batch["loss_mask"].any(-1).to(self._device), 0.0)

    def start_from(self, policy_state: Mapping[str, Any]) -> None:
        """Take over the statistics that normalise states; policy and critic share no other weights."""
        statistics = {name: value for name, value in policy_state.items() if name.startswith("normalize.")}
        self.model.load_state_dict(self.model.state_dict() | statistics)
