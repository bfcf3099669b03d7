"""The policy of images and chunks as an :class:`~embodyflow.policies.base.ImageOffPolicy` that also imitates."""

from collections.abc import Mapping
from typing import cast

import numpy as np
import torch
from tensordict import TensorDict

from embodyflow.policies.base import Decision
from embodyflow.policies.decisions import at_decisions, decisions
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

    @torch.inference_mode()
    def act(self, observation: dict[str, np.ndarray], uniforms: np.ndarray | None, temperature: float) -> Decision:
        """Decide for n environments; see :class:`~embodyflow.policies.base.ActingPolicy`."""
        tensors = {key: torch.from_numpy(observation[key]) for key in self.config.observation_keys}
        return self._decision(self._read(tensors), uniforms, temperature)

    def evaluate(self, batch: TensorDict, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-densities of a batch's numbers, float32 ``[N, T, C·A]``, and as entropy their negative.

        Both are zero outside the mask. The entropy has no closed form; the negative is an estimate by one sample.
        """
        mask = batch["loss_mask"].to(self._device)
        decided, observation = decisions(batch, self.config.observation_keys, self._device)
        taken = batch["action_tokens"].to(self._device)[decided]
        if not len(taken):
            taken = taken.new_zeros(1, self.num_draws)
        log_probs = at_decisions(self._log_densities(self._read(observation), taken, temperature), decided, mask)
        return log_probs, -log_probs

    def _read(self, observation: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return self.encode(observation["state"], observation)
