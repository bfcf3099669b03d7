"""Embeddings of episodes as vectors, which SRPO's progress reward compares."""

import functools
from typing import Protocol, assert_never

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from embodyflow.columns import FINAL
from embodyflow.policies.pretrained.whole_models import load_whole
from embodyflow.rewards.progress.progress_config import EmbeddingConfig, StateEmbeddingConfig, VJEPA2EmbeddingConfig

IMAGE_MEAN, IMAGE_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and deviation of ImageNet's colours, which V-JEPA 2 was trained with."""

MARGIN = 256 / 224
"""Ratio of a frame's shorter side to the side of the crop that V-JEPA 2 sees, as in its own evaluation."""


class Embedding(Protocol):
    """Embeds episodes as vectors; an episode's vector does not depend on the other episodes of the batch."""

    def __call__(self, batch: TensorDict) -> Tensor:
        """Return embeddings, float32 [N, D]; D is the same for every batch of a run, even one without rows.

        Args:
            batch: Embodied rows (:mod:`embodyflow.types`).
        """


@functools.lru_cache(maxsize=1)
def build_embedding(config: EmbeddingConfig, device: str) -> Embedding:
    """Build the embedding of a configuration; a process loads a model only once."""
    match config:
        case StateEmbeddingConfig():
            return StateEmbedding(config)
        case VJEPA2EmbeddingConfig():
            return VJEPA2Embedding(config, device)
        case _:
            assert_never(config)


class StateEmbedding:
    """Concatenates the later states of an episode, resampled to a fixed length by linear interpolation in time.

    The known states are those before each decision and the one after the last action, which decided success.
    """

    def __init__(self, config: StateEmbeddingConfig) -> None:
        self._config = config

    def __call__(self, batch: TensorDict) -> Tensor:
        """Return embeddings, float32 [N, num_points · entries]."""
        states, final = batch["state"].float(), batch[FINAL + "state"].float()
        if self._config.entries is not None:
            states, final = (each[..., list(self._config.entries)] for each in (states, final))
        embedded = states.new_zeros(len(batch), self._config.num_points, states.shape[-1])
        durations = batch["loss_mask"].double().mean(-1).sum(-1).tolist()  # in decisions; the last may be partial
        for row, (length, end) in enumerate(zip(_num_decisions(batch), durations, strict=True)):
            trajectory = torch.cat([states[row, :length], final[row : row + 1]])
            times = torch.linspace(end * self._config.start, end, self._config.num_points, dtype=torch.float64)
            before = times.floor().clamp(max=length - 1)
            share = ((times - before) / (end - before).clamp(max=1)).to(states.dtype).unsqueeze(1)
            embedded[row] = trajectory[before.long()] * (1 - share) + trajectory[before.long() + 1] * share
        return embedded.flatten(1)


class VJEPA2Embedding:
    """Encodes the frames before each decision and after the last action with V-JEPA 2, averaged over its tokens.

    The model gets its own number of frames per clip, evenly spaced; shorter episodes repeat frames. Frames are resized
    by their shorter side and center-cropped, as in the model's own evaluation. Episodes go through the model one by
    one.
    """

    def __init__(self, config: VJEPA2EmbeddingConfig, device: str) -> None:
        from transformers import VJEPA2Model  # takes seconds to import, and other runs do not need it

        self._camera = config.camera
        key = f"progress.embedding.path={config.path}"
        self._model = load_whole(VJEPA2Model, config.path, key, unused=("predictor.",)).to(device).eval()
        self._device = device

    @torch.inference_mode()
    def __call__(self, batch: TensorDict) -> Tensor:
        """Return embeddings, float32 [N, D], where D is the width of the model."""
        embedded = torch.zeros(len(batch), self._model.config.hidden_size)
        for row, length in enumerate(_num_decisions(batch)):
            video = torch.cat([batch[self._camera][row, :length], batch[FINAL + self._camera][row : row + 1]])
            times = torch.linspace(0, length, self._model.config.frames_per_clip).round().long()
            frames = self._preprocess(video[times].to(self._device)).to(self._model.dtype)
            encoded = self._model(pixel_values_videos=frames.unsqueeze(0), skip_predictor=True).last_hidden_state
            embedded[row] = encoded.float().mean(dim=1)[0].cpu()
        return embedded

    def _preprocess(self, frames: Tensor) -> Tensor:
        """Resize, crop and normalise frames, uint8 [F, H, W, 3], to the model's input, float32 [F, 3, side, side]."""
        side = self._model.config.crop_size
        colours = frames.permute(0, 3, 1, 2).float() / 255
        scale = int(side * MARGIN) / min(colours.shape[-2:])
        size = [max(side, round(length * scale)) for length in colours.shape[-2:]]
        scaled = torch.nn.functional.interpolate(colours, size, mode="bilinear", antialias=True)
        top, left = ((length - side) // 2 for length in size)
        mean, deviation = (scaled.new_tensor(values).view(3, 1, 1) for values in (IMAGE_MEAN, IMAGE_STD))
        return (scaled[..., top : top + side, left : left + side] - mean) / deviation


def _num_decisions(batch: TensorDict) -> list[int]:
    """Return the number of decisions of each episode, at least 1."""
    counts: list[int] = np.maximum(batch["loss_mask"].any(-1).sum(-1).numpy(), 1).tolist()
    return counts
