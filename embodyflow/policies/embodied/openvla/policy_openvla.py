"""OpenVLA as an :class:`~embodyflow.policies.base.ImitatingPolicy`."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub import save_torch_state_dict
from tensordict import TensorDict

from embodyflow.policies.action_tokens import (
    choose_tokens,
    evaluate_tokens,
    imitation_cross_entropy,
    smoothed_targets,
    token_log_probs,
)
from embodyflow.policies.base import Decision, NormalizationStatistics
from embodyflow.policies.decisions import decisions
from embodyflow.policies.embodied.openvla.actions_openvla import ActionCodec
from embodyflow.policies.embodied.openvla.checkpoint_openvla import (
    BESIDE_WEIGHTS,
    CONFIG,
    Description,
    describe_scratch,
    read_checkpoint,
    statistics_of,
)
from embodyflow.policies.embodied.openvla.configuration_openvla import OpenVLAConfig
from embodyflow.policies.embodied.openvla.images_openvla import ImageProcessor
from embodyflow.policies.embodied.openvla.modeling_openvla import build_model, tower_sizes
from embodyflow.policies.embodied.openvla.tokenizer_openvla import prompt_ids
from embodyflow.policies.pretrained.checkpoints import is_outline
from embodyflow.policies.pretrained.tokenizers import load_tokenizer


class OpenVLAPolicy:
    """Samples action tokens from the last 256 words of a language model's vocabulary, normalised among themselves.

    Args:
        config: Configuration of model, observations and decoding.
        device: Device of the model.
    """

    token_dtype: np.dtype[Any] = np.dtype(np.int64)
    num_imitation_draws = 0

    def __init__(self, config: OpenVLAConfig, device: str) -> None:
        self.config = config
        self.num_tokens = self.num_draws = config.num_action_tokens
        self.description, self.tokenizer = describe(config)
        self._num_bins: int = self.description.config["n_action_bins"]
        self.codec = ActionCodec(statistics_of(config, self.description), self._num_bins, config.gripper)
        self.images = image_processor(config, self.description)
        self.model: torch.nn.Module = self._build_model().to(device)
        self._device = device

    def _build_model(self) -> torch.nn.Module:
        return build_model(self.description, self.config.decoding, self.num_tokens)

    @property
    def horizon(self) -> int:
        """H = C."""
        return self.config.chunk_size

    @property
    def blocks(self) -> Sequence[torch.nn.Module]:
        """The transformer blocks of vision towers and language model."""
        return list(self.model.blocks)  # type: ignore[arg-type]

    def encode_instruction(self, instruction: str) -> np.ndarray:
        """Return the prompt as int64 ``[I]``; 0 is padding."""
        return prompt_ids(self.tokenizer, instruction, self.config.max_prompt_tokens)

    @torch.inference_mode()
    def act(self, observation: dict[str, np.ndarray], uniforms: np.ndarray | None, temperature: float) -> Decision:
        """Decide for n environments; see :class:`~embodyflow.policies.base.ActingPolicy`."""
        keys = (*self.config.cameras, "instruction_ids")
        seen = {key: torch.from_numpy(observation[key]).to(self._device) for key in keys}
        draws = None if uniforms is None else torch.from_numpy(uniforms).to(self._device)

        def choose(logits: torch.Tensor, places: slice) -> torch.Tensor:
            return choose_tokens(logits, None if draws is None else draws[:, places], temperature)[0]

        model: Any = self.model
        tokens, logits = model.decide(*self._inputs(seen), choose)
        log_probs = token_log_probs(logits, tokens, temperature)
        return Decision(tokens.cpu().numpy(), log_probs.cpu().numpy(), self.codec.actions(tokens).numpy())

    def evaluate(self, batch: TensorDict, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probs and entropy of a batch's tokens, float32 ``[N, T, L]``; zero outside its mask."""
        decided, observation = decisions(batch, [*self.config.cameras, "action_tokens"], self._device)
        return evaluate_tokens(self._logits(observation), batch, decided, temperature)

    @property
    def feature_size(self) -> int:
        """F, features of the language model."""
        return int(self.description.config["text_config"]["hidden_size"])

    def features(self, batch: TensorDict) -> torch.Tensor:
        """Return the hidden states before the actions; see :class:`~embodyflow.policies.base.FeaturePolicy`."""
        _, seen = decisions(batch, self.config.observation_keys, self._device)
        model: Any = self.model
        features: torch.Tensor = model.features(*self._inputs(seen))
        return features

    def evaluate_with_features(
        self, batch: TensorDict, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return log-probs, entropy and features; see :class:`~embodyflow.policies.base.FeaturePolicy`."""
        decided, seen = decisions(batch, [*self.config.cameras, "action_tokens"], self._device)
        model: Any = self.model
        logits, features = model.forward_with_features(*self._inputs(seen), seen["action_tokens"])
        return (*evaluate_tokens(logits, batch, decided, temperature), features)

    def export(self, weights: Mapping[str, np.ndarray], folder: Path) -> None:
        """Write a folder in the published layout, which ``policy.path`` accepts."""
        folder.mkdir(parents=True, exist_ok=True)
        save_torch_state_dict({name: torch.from_numpy(array) for name, array in weights.items()}, folder)
        source = self.description.folder
        if source is None:
            (folder / CONFIG).write_text(json.dumps(self.description.config, indent=2))
            self.tokenizer.save_pretrained(folder)
            return
        for pattern in BESIDE_WEIGHTS:
            for file in source.glob(pattern):
                if not file.name.endswith(".safetensors.index.json"):  # it lists the source's shards
                    shutil.copy(file, folder)

    def set_normalization(self, states: torch.Tensor, actions: torch.Tensor) -> None:
        """Do nothing: the policy reads no states, and the checkpoint's statistics scale its actions."""

    def load_normalization(self, statistics: NormalizationStatistics) -> None:
        """Do nothing, as :meth:`set_normalization`."""

    def imitation_loss(
        self,
        observation: dict[str, torch.Tensor],
        actions: torch.Tensor,
        mask: torch.Tensor,
        sigma: float,
        uniforms: torch.Tensor,
    ) -> torch.Tensor:
        """Return the cross-entropy to smoothed expert actions, summed over the tokens inside the mask.

        Args:
            observation: n observations.
            actions: Expert actions of the environment, float32 ``[n, C, A]``.
            mask: Actions that count, bool ``[n, C]``; false after the end of a demonstration.
            sigma: Standard deviation of the smoothing, in bins.
            uniforms: Unused; the loss takes no random numbers.
        """
        positions = self.codec.positions(actions).to(self._device)
        seen = {name: values.to(self._device) for name, values in observation.items()}
        logits = self._logits(seen | {"action_tokens": positions.round().long()})
        targets = smoothed_targets(positions, self._num_bins, sigma)
        return imitation_cross_entropy(logits, targets, mask.to(self._device))

    def _logits(self, seen: Mapping[str, torch.Tensor]) -> torch.Tensor:
        logits: torch.Tensor = self.model(*self._inputs(seen), seen["action_tokens"])
        return logits

    def _inputs(self, seen: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return pixels and prompt of observations on the model's device."""
        return pixels(self.images, self.config, seen), seen["instruction_ids"]


def describe(config: OpenVLAConfig) -> tuple[Description, Any]:
    """Return a model's description and its ``transformers`` tokenizer; weights are fetched but not read."""
    if config.scratch is None:
        assert config.path is not None
        description = read_checkpoint(config.path, weights=not is_outline())
        return description, load_tokenizer(config, description.folder)
    tokenizer = load_tokenizer(config, None)
    return describe_scratch(config, len(tokenizer)), tokenizer


def image_processor(config: OpenVLAConfig, description: Description) -> ImageProcessor:
    """Return the processor of a model's images."""
    strategy = description.config["image_resize_strategy"]
    towers = tower_sizes(description)
    return ImageProcessor(towers, description.preprocessing, strategy, config.resample, config.center_crop)


def pixels(images: ImageProcessor, config: OpenVLAConfig, seen: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the pixels of K cameras for the vision towers, float32 ``[n, K, 3·towers, S, S]``."""
    return torch.stack([images(seen[camera]) for camera in config.cameras], dim=1)
