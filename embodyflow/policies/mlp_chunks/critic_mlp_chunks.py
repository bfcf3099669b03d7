"""Critics of the policy of chunks, as :class:`~embodyflow.policies.base.ActionCritics`."""

from collections.abc import Mapping
from typing import Any

import torch

from embodyflow.policies.mlp_chunks.configuration_mlp_chunks import MLPChunksConfig
from embodyflow.policies.mlp_chunks.modeling_mlp_chunks import ChunkCritics


class MLPChunksCritic:
    """Values decisions with ``num_critics`` networks.

    Args:
        config: Configuration of the policy, for its sizes.
        device: Device of the model.
    """

    def __init__(self, config: MLPChunksConfig, device: str) -> None:
        self._critics = ChunkCritics(config).to(device)
        self.model: torch.nn.Module = self._critics
        self.num_members, self._device = config.num_critics, device

    def evaluate_actions(
        self, state: torch.Tensor, action: torch.Tensor, members: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the value of each decision by each critic; see :class:`~embodyflow.policies.base.ActionCritics`."""
        values: torch.Tensor = self.model(state.to(self._device), action.to(self._device), members)
        return values

    def start_from(self, policy_state: Mapping[str, Any]) -> None:
        """Take over the policy's statistics of states."""
        self._critics.start_from(policy_state)
