"""ACT as an :class:`~embodyflow.policies.base.ImitatingPolicy`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
from tensordict import TensorDict

from embodyflow.policies.base import Decision, NormalizationStatistics
from embodyflow.policies.decisions import at_decisions, decisions
from embodyflow.policies.embodied.act.checkpoint_act import describe
from embodyflow.policies.embodied.act.configuration_act import ACTConfig
from embodyflow.policies.embodied.act.export_act import write_checkpoint
from embodyflow.policies.embodied.act.modeling_act import ACTModel, build_model
from embodyflow.policies.flow_sde import standard_normals
from embodyflow.policies.laplace import entropies, log_densities, standard_samples


class ACTPolicy:
    """Samples a chunk from a Laplace distribution around the action head's numbers.

    ``action_tokens`` records the numbers of all H actions of the model's chunk, float32 ``[..., H·A]``, in deviations
    of the demonstrated actions. The first C actions are executed; each of their numbers has a log-density.

    Args:
        config: Configuration of model and observations.
        device: Device of the model.
    """

    token_dtype = np.dtype(np.float32)

    def __init__(self, config: ACTConfig, device: str) -> None:
        self.config = config
        self.description = describe(config)
        self.model: torch.nn.Module = build_model(config, self.description).to(device)
        self.num_tokens = config.num_action_tokens
        self.num_draws = self.horizon * config.action_dim
        self.num_imitation_draws = int(self.description.config["latent_dim"])
        self._device = device

    @property
    def horizon(self) -> int:
        """H, actions of the model's chunk; the first C of them are executed."""
        return self.description.horizon

    @property
    def blocks(self) -> Sequence[torch.nn.Module]:
        """The layers of all transformers."""
        return self._act.blocks

    def encode_instruction(self, instruction: str) -> np.ndarray:
        """Return int64 ``[1]``, padding: the policy reads no instruction."""
        del instruction
        return np.zeros(1, np.int64)

    @torch.inference_mode()
    def act(self, observation: dict[str, np.ndarray], uniforms: np.ndarray | None, temperature: float) -> Decision:
        """Decide for n environments; see :class:`~embodyflow.policies.base.ActingPolicy`.

        Args:
            observation: ``state``, float32 ``[n, S]``, and the images of each camera.
            uniforms: Random numbers in [0, 1), float32 ``[n, H·A]``; ``None`` takes the medians.
            temperature: Factor of the scales.
        """
        seen = {key: torch.from_numpy(observation[key]).to(self._device) for key in self.config.observation_keys}
        medians, scales = self.model(*self._inputs(seen))
        numbers, every = medians.flatten(1), (scales * temperature).repeat(self.horizon)
        if uniforms is not None:
            numbers = numbers + every * standard_samples(torch.from_numpy(uniforms)).to(self._device)
        log_probs = log_densities(numbers, medians.flatten(1), every)[:, : self.num_tokens]
        actions = self._act.statistics.actions(numbers.unflatten(1, (self.horizon, -1)))
        return Decision(numbers.cpu().numpy(), log_probs.contiguous().cpu().numpy(), actions.cpu().numpy())

    def evaluate(self, batch: TensorDict, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-densities and entropy of a batch's numbers, float32 ``[N, T, C·A]``; zero outside its mask."""
        log_probs, entropy, _ = self.evaluate_with_features(batch, temperature)
        return log_probs, entropy

    @property
    def feature_size(self) -> int:
        """F, features of the encoder's output for the latent."""
        return self._act.size

    def features(self, batch: TensorDict) -> torch.Tensor:
        """Return the encoder's outputs for the latent; see :class:`~embodyflow.policies.base.FeaturePolicy`."""
        _, seen = decisions(batch, self.config.observation_keys, self._device)
        return self._act.features(*self._inputs(seen))

    def evaluate_with_features(
        self, batch: TensorDict, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return log-densities, entropy and features; see :class:`~embodyflow.policies.base.FeaturePolicy`."""
        decided, seen = decisions(batch, [*self.config.observation_keys, "action_tokens"], self._device)
        medians, scales, features = self._act.forward_with_features(*self._inputs(seen))
        executed = slice(self.num_tokens)
        every, mask = (scales * temperature).repeat(self.config.chunk_size), batch["loss_mask"].to(self._device)
        log_probs = log_densities(seen["action_tokens"][:, executed], medians.flatten(1)[:, executed], every)
        entropy = entropies(every).expand_as(log_probs)
        return at_decisions(log_probs, decided, mask), at_decisions(entropy, decided, mask), features

    def export(self, weights: Mapping[str, np.ndarray], folder: Path) -> None:
        """Write a folder in LeRobot's layout, which ``policy.path`` accepts."""
        write_checkpoint(self.config, self.description, weights, folder)

    def set_normalization(self, states: torch.Tensor, actions: torch.Tensor) -> None:
        """Normalise by the statistics of demonstrations; do nothing if the checkpoint's statistics are used."""
        if self.config.normalization == "checkpoint":
            return
        self._act.statistics.fit("state", states)
        self._act.statistics.fit("action", actions)

    def load_normalization(self, statistics: NormalizationStatistics) -> None:
        """Normalise by the statistics of a data set; do nothing if the checkpoint's statistics are used."""
        if self.config.normalization == "checkpoint":
            return
        self._act.statistics.load(statistics)

    def imitation_loss(
        self,
        observation: dict[str, torch.Tensor],
        actions: torch.Tensor,
        mask: torch.Tensor,
        sigma: float,
        uniforms: torch.Tensor,
    ) -> torch.Tensor:
        """Return ACT's loss: absolute errors of the decoded chunk, and the divergence of its latent.

        The scale is left for RL: fitted to demonstrations it would shrink, and with it exploration.

        Args:
            observation: n observations.
            actions: Expert actions of the environment, float32 ``[n, H, A]``.
            mask: Actions that count, bool ``[n, H]``; false after the end of a demonstration.
            sigma: Unused; there are no bins to smooth over.
            uniforms: Random numbers in [0, 1) of the latents, float32 ``[n, Z]``.

        Returns:
            Sum over the counted numbers of the absolute error and of ``kl_weight`` times their sample's divergence in
            nats, so that the mean over numbers is LeRobot's loss.
        """
        del sigma
        seen = {name: values.to(self._device) for name, values in observation.items()}
        target = self._act.statistics.standardise("action", actions.to(self._device), self.config.action_dim)
        mask, normals = mask.to(self._device), standard_normals(uniforms.to(self._device))
        decoded, divergence, scales = self._act.reconstruct(*self._inputs(seen), target, mask, normals)
        errors = ((decoded - target).abs() * mask[..., None]).sum()
        counted = mask.sum(1) * self.config.action_dim
        loss: torch.Tensor = errors + self.config.kl_weight * (divergence * counted).sum()
        return loss + scales.sum() * 0.0  # a sharded parameter needs a gradient

    @property
    def _act(self) -> ACTModel:
        return cast(ACTModel, self.model)

    def _inputs(self, seen: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor | None]:
        return seen["state"], pixels(self.config, seen)


def pixels(config: ACTConfig, seen: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    """Return the pixels of K cameras, uint8 ``[n, K, h, w, 3]``; ``None`` without cameras."""
    return torch.stack([seen[camera] for camera in config.cameras], dim=1) if config.cameras else None
