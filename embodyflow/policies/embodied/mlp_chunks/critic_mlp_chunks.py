"""Critics of the policy of chunks, as :class:`~embodyflow.policies.base.ActionCritics`."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from embodyflow.policies.control.mlp_squashed.modeling_mlp_squashed import CriticSizes
from embodyflow.policies.embodied.mlp_chunks.modeling_mlp_chunks import ChunkCritics


class MLPChunksCritic:
    """Values decisions with ``num_critics`` networks.

    Args:
        config: Configuration of the policy, for its sizes.
        device: Device of the model.

    Attributes:
        networks: Class of the networks.
    """

    networks: ClassVar[type[ChunkCritics]] = ChunkCritics

    def __init__(self, config: CriticSizes, device: str) -> None:
        self._critics = self.networks(config).to(device)
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
