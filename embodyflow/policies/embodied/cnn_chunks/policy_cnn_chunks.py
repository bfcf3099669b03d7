"""The policy of images and chunks as an :class:`~embodyflow.policies.base.ImageOffPolicy` that also imitates."""

from collections.abc import Mapping
from typing import cast

import torch

from embodyflow.policies.embodied.cnn_chunks.configuration_cnn_chunks import CNNChunksConfig
from embodyflow.policies.embodied.cnn_chunks.modeling_cnn_chunks import CNNChunks
from embodyflow.policies.embodied.mlp_chunks.policy_mlp_chunks import ChunksPolicy


class CNNChunksPolicy(ChunksPolicy):
    """Samples a chunk of C actions in [-1, 1] by images and state.

    ``sample`` and ``log_density`` take features in place of states.

    Args:
        config: Sizes.
        device: Device of the model.
    """

    config: CNNChunksConfig

    def __init__(self, config: CNNChunksConfig, device: str) -> None:
        super().__init__(config, CNNChunks(config), device)

    def encode(self, state: torch.Tensor, images: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return features; see :class:`~embodyflow.policies.base.ImageOffPolicy`."""
        seen = {camera: images[camera].to(self._device) for camera in self.config.cameras}
        features: torch.Tensor = cast(CNNChunks, self.model).encoder(state.to(self._device), seen)
        return features

    def _read(self, observation: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return self.encode(observation["state"], observation)
