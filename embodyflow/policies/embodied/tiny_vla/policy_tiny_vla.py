"""TinyVLA as an :class:`~embodyflow.policies.base.ImitatingPolicy`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from embodyflow.policies.action_tokens import (
    choose_tokens,
    evaluate_tokens,
    imitation_cross_entropy,
    member_mask,
    smoothed_targets,
)
from embodyflow.policies.base import Decision, NormalizationStatistics
from embodyflow.policies.decisions import decisions
from embodyflow.policies.embodied.tiny_vla.configuration_tiny_vla import TinyVLAConfig
from embodyflow.policies.embodied.tiny_vla.modeling_tiny_vla import TinyVLA
from embodyflow.policies.embodied.tiny_vla.processing_tiny_vla import TinyVLAProcessor
from embodyflow.policies.observations import MEMBER_KEY


class TinyVLAPolicy:
    """Samples all tokens of a chunk at once, decoded in parallel.

    Args:
        config: Sizes.
        device: Device of the model.
    """

    token_dtype = np.dtype(np.int64)
    num_imitation_draws = 0

    def __init__(self, config: TinyVLAConfig, device: str) -> None:
        self.config = config
        self.num_tokens = self.num_draws = config.num_action_tokens
        self.model: torch.nn.Module = TinyVLA(config).to(device)
        self.processor = TinyVLAProcessor(config)
        self._device = device
        self._keys = config.observation_keys

    @property
    def horizon(self) -> int:
        """H = C."""
        return self.config.chunk_size

    @property
    def blocks(self) -> Sequence[torch.nn.Module]:
        """The network's layers."""
        return list(self.model.blocks)  # type: ignore[arg-type]

    def encode_instruction(self, instruction: str) -> np.ndarray:
        """Return the instruction as int64 ``[I]``; 0 is padding."""
        ids: np.ndarray = self.processor.instruction_ids([instruction])[0].numpy()
        return ids

    @torch.inference_mode()
    def act(self, observation: dict[str, np.ndarray], uniforms: np.ndarray | None, temperature: float) -> Decision:
        """Decide for n environments; see :class:`~embodyflow.policies.base.ActingPolicy`."""
        keys = (*self._keys, "instruction_ids")
        logits = self.model({key: torch.from_numpy(observation[key]).to(self._device) for key in keys})
        draws = None if uniforms is None else torch.from_numpy(uniforms).to(self._device)
        tokens, log_probs = choose_tokens(logits, draws, temperature)
        actions = self.processor.actions(tokens)
        return Decision(tokens.cpu().numpy(), log_probs.cpu().numpy(), actions.cpu().numpy())

    def evaluate(self, batch: TensorDict, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probs and entropy of a batch's tokens, float32 ``[N, T, L]``; zero outside its mask."""
        decided, observation = decisions(batch, self._keys, self._device)
        return evaluate_tokens(self.model(observation), batch, decided, temperature)

    @property
    def feature_size(self) -> int:
        """F, features of the residual stream."""
        return self.config.hidden_size

    def features(self, batch: TensorDict) -> torch.Tensor:
        """Return the inputs of the head before each decision; see :class:`~embodyflow.policies.base.FeaturePolicy`."""
        model: Any = self.model
        features: torch.Tensor = model.features(decisions(batch, self._keys, self._device)[1])
        return features

    def evaluate_with_features(
        self, batch: TensorDict, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return log-probs, entropy and features; see :class:`~embodyflow.policies.base.FeaturePolicy`."""
        decided, observation = decisions(batch, self._keys, self._device)
        model: Any = self.model
        logits, features = model.forward_with_features(observation)
        return (*evaluate_tokens(logits, batch, decided, temperature), features)

    def export(self, weights: Mapping[str, np.ndarray], folder: Path) -> None:
        """Write a Hugging Face folder that ``TinyVLA.from_pretrained`` loads."""
        model = TinyVLA(self.config)
        model.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
        model.save_pretrained(folder)

    def set_normalization(self, states: torch.Tensor, actions: torch.Tensor) -> None:
        """Standardise states by the mean and deviation of ``states``, float32 ``[n, S]``; actions keep their bins."""
        self.model.embed.set_statistics(states)  # type: ignore[union-attr,operator]

    def set_member_normalization(self, states: torch.Tensor, members: torch.Tensor) -> None:
        """Standardise the states of each member by their own mean and deviation.

        See :class:`~embodyflow.policies.base.MemberPolicy`.
        """
        self.model.embed.set_member_statistics(states, members)  # type: ignore[union-attr,operator]

    def load_normalization(self, statistics: NormalizationStatistics) -> None:
        """Standardise states by the mean and deviation of a data set; actions keep their bins."""
        mean, std = statistics.state_mean, statistics.state_std
        self.model.embed.load_statistics(statistics.count, mean, std)  # type: ignore[union-attr,operator]

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
            actions: Expert actions, float32 ``[n, C, A]``.
            mask: Actions that count, bool ``[n, C]``; false after the end of a demonstration. Dimensions that the
                member of an observation lacks do not count.
            sigma: Standard deviation of the smoothing, in bins. Choices are not smoothed: they have no neighbours.
            uniforms: Unused; the loss takes no random numbers.
        """
        seen = {name: values.to(self._device) for name, values in observation.items()}
        positions = self.processor.positions(actions.to(self._device))
        choices = self.config.num_choices
        num_values, width = (self.config.num_bins, sigma) if choices is None else (max(choices), 0.0)
        targets = smoothed_targets(positions, num_values, width)
        counted = mask.to(self._device).repeat_interleave(self.config.action_dim, dim=1)
        if (dims := self.config.member_action_dims) is not None:
            counted = counted & member_mask(seen[MEMBER_KEY], dims).repeat(1, self.config.chunk_size)
        return imitation_cross_entropy(self.model(seen), targets, counted)
