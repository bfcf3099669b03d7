"""Policies that denoise, as :class:`~embodyflow.policies.base.ImitatingPolicy`."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, cast

import numpy as np
import torch
from tensordict import TensorDict

from embodyflow.policies.base import Decision, NormalizationStatistics
from embodyflow.policies.decisions import at_decisions, decisions
from embodyflow.policies.embodied.denoising import denoise
from embodyflow.policies.embodied.flow_vla.checkpoint_flow_vla import Description, Layout, describe
from embodyflow.policies.embodied.flow_vla.configuration_flow_vla import FlowVLAConfig
from embodyflow.policies.embodied.flow_vla.export_flow_vla import write_checkpoint
from embodyflow.policies.embodied.flow_vla.images_flow_vla import prepare_images
from embodyflow.policies.embodied.flow_vla.modeling_flow_vla import FlowVLA
from embodyflow.policies.embodied.flow_vla.tokenizer_flow_vla import prompt_ids
from embodyflow.policies.flow_sde import FlowSDE, standard_normals


class FlowVLAPolicy(ABC):
    """Denoises actions in Gaussian steps, whose densities RL trains on.

    ``action_tokens`` records the chain from noise to action, float32 ``[H, K + 1, Amax]``: K steps between K + 1
    points, for each planned action, padding included. Each step of each of the C executed actions has a log-prob. As in
    πRL, padding dimensions and actions that are not executed are left out of it, since they have no effect.

    Args:
        config: Configuration of model, observations and exploration.
        device: Device of the model.

    Attributes:
        layout: Layout of the checkpoints.
    """

    token_dtype = np.dtype(np.float32)
    layout: ClassVar[Layout]

    def __init__(self, config: FlowVLAConfig, device: str) -> None:
        self.config = config
        self.description, self.tokenizer = describe(self.layout, config)
        self.model: torch.nn.Module = self.build_model().to(device)
        self.flow = FlowSDE(config.num_steps, config.noise_level)
        self._size = int(self.description.config["max_action_dim"])
        self.num_tokens = config.num_action_tokens
        self.num_draws = self.horizon * (config.num_steps + 1) * self._size
        self.num_imitation_draws = self.horizon * self._size + 1
        self._device = device

    @abstractmethod
    def build_model(self) -> FlowVLA:
        """Return the model of :attr:`description` in float32, with a checkpoint's weights or random ones.

        Raises:
            ConfigError: The weights are not those of a model of this description.
        """

    @property
    @abstractmethod
    def horizon(self) -> int:
        """H, actions that are denoised together; the first C of them are executed."""

    @property
    @abstractmethod
    def num_imitated_dims(self) -> int:
        """Dimensions of an action that the imitation loss is the mean over."""

    @property
    def noise_dim(self) -> int:
        """Amax, numbers of an action's noise, padding included."""
        return self._size

    @property
    def blocks(self) -> Sequence[torch.nn.Module]:
        """Transformer blocks of vision tower, language model and expert."""
        return self._flow_vla.blocks

    @property
    def block_tokens(self) -> Sequence[int]:
        """Tokens that pass through each of the :attr:`blocks` when a decision is evaluated.

        The tower reads patches, the language model their embeddings, the prompt and the state, and the expert, which is
        as deep as the language model, the actions of all denoising steps.
        """
        model = self._flow_vla.model
        patches = len(self.config.cameras) * model.tower.embeddings.num_patches
        context = patches // model.patches_per_embedding + self.config.max_prompt_tokens + model.state_embeddings
        depth = len(model.tower.encoder.layers)
        rest = (len(self.blocks) - depth) // 2
        return (*[patches] * depth, *[context] * rest, *[self.horizon * self.config.num_steps] * rest)

    def encode_instruction(self, instruction: str) -> np.ndarray:
        """Return the prompt as int64 ``[I]``; 0 is padding."""
        return prompt_ids(self.tokenizer, instruction, self.config.max_prompt_tokens)

    @torch.inference_mode()
    def act(self, observation: dict[str, np.ndarray], uniforms: np.ndarray | None, temperature: float) -> Decision:
        """Decide for n environments; see :class:`~embodyflow.policies.base.ActingPolicy`.

        Args:
            observation: Observations, see there.
            uniforms: Random numbers in [0, 1), float32 ``[n, H·(K + 1)·Amax]``, for the initial noise and that of each
                step; ``None`` follows the ordinary differential equation from the noise's mean.
            temperature: Factor of each step's variance: its density is raised to 1/temperature.
        """
        keys = (*self.config.observation_keys, "instruction_ids")
        seen = {key: torch.from_numpy(observation[key]).to(self._device) for key in keys}
        normals = None if uniforms is None else standard_normals(self._chain(torch.from_numpy(uniforms)))
        chain, velocities = self._denoise(seen, None if normals is None else normals.to(self._device), temperature)
        log_probs = self._log_probs(chain, velocities, temperature)
        actions = self._flow_vla.statistics.actions(chain[:, :, -1])
        return Decision(chain.flatten(1).cpu().numpy(), log_probs.cpu().numpy(), actions.cpu().numpy())

    def follow(self, seen: Mapping[str, torch.Tensor], noise: torch.Tensor) -> torch.Tensor:
        """Return the actions that the ordinary differential equation leads to from noise; nothing is drawn.

        Args:
            seen: n observations, with ``instruction_ids``, on the model's device.
            noise: Noise of the planned actions, float32 ``[n, H, Amax]``.

        Returns:
            Planned actions, float32 ``[n, H, A]``.
        """
        chain, _ = self._denoise(seen, noise[:, :, None], 1.0)
        return self._flow_vla.statistics.actions(chain[:, :, -1])

    def evaluate(self, batch: TensorDict, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probs and entropy of a batch's steps, float32 ``[N, T, L]``; zero outside its mask."""
        decided, seen = decisions(batch, [*self.config.observation_keys, "action_tokens"], self._device)
        velocities = self.model(*self._points(seen))
        return self._log_probs_and_entropy(batch, decided, seen, velocities, temperature)

    @property
    def feature_size(self) -> int:
        """F, features of the context model's last output."""
        return self._flow_vla.model.size

    def features(self, batch: TensorDict) -> torch.Tensor:
        """Return the context model's outputs; see :class:`~embodyflow.policies.base.FeaturePolicy`."""
        _, seen = decisions(batch, self.config.observation_keys, self._device)
        return self._flow_vla.features(*self._inputs(seen))

    def evaluate_with_features(
        self, batch: TensorDict, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return log-probs, entropy and features; see :class:`~embodyflow.policies.base.FeaturePolicy`."""
        decided, seen = decisions(batch, [*self.config.observation_keys, "action_tokens"], self._device)
        velocities, features = self._flow_vla.forward_with_features(*self._points(seen))
        return (*self._log_probs_and_entropy(batch, decided, seen, velocities, temperature), features)

    def _points(self, seen: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the model's arguments for the starts of all steps of the recorded chains."""
        chain = self._chain(seen["action_tokens"])
        times = torch.tensor(self.flow.times, device=self._device).expand(len(chain), -1)
        return (*self._inputs(seen), chain[:, :, :-1].transpose(1, 2), times)

    def _log_probs_and_entropy(
        self,
        batch: TensorDict,
        decided: torch.Tensor,
        seen: Mapping[str, torch.Tensor],
        velocities: torch.Tensor,
        temperature: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probs and entropy of a batch's steps, given the velocities, float32 ``[D·K, H, Amax]``."""
        chain = self._chain(seen["action_tokens"])
        velocities = velocities.unflatten(0, (len(chain), -1)).transpose(1, 2)
        log_probs = self._log_probs(chain, velocities, temperature)
        entropy = self.config.action_dim * self.flow.entropy(chain, temperature).expand(
            len(chain), self.config.chunk_size, -1
        )
        mask = batch["loss_mask"].to(self._device)
        return at_decisions(log_probs, decided, mask), at_decisions(entropy.flatten(1), decided, mask)

    def export(self, weights: Mapping[str, np.ndarray], folder: Path) -> None:
        """Write a folder in LeRobot's layout, which ``policy.path`` accepts."""
        write_checkpoint(self.layout, self.config, self.description, self.tokenizer, weights, folder)

    def set_normalization(self, states: torch.Tensor, actions: torch.Tensor) -> None:
        """Normalise by the statistics of demonstrations; do nothing if the checkpoint's statistics are used."""
        if self.config.normalization == "checkpoint":
            return
        self._flow_vla.statistics.fit("state", states)
        self._flow_vla.statistics.fit("action", actions)

    def load_normalization(self, statistics: NormalizationStatistics) -> None:
        """Normalise by the statistics of a data set; do nothing if the checkpoint's statistics are used."""
        if self.config.normalization == "checkpoint":
            return
        self._flow_vla.statistics.load(statistics)

    def imitation_loss(
        self,
        observation: dict[str, torch.Tensor],
        actions: torch.Tensor,
        mask: torch.Tensor,
        sigma: float,
        uniforms: torch.Tensor,
    ) -> torch.Tensor:
        """Return the flow-matching loss: the squared error of the velocity towards the expert's actions.

        Each sample is noised at one time, 0.001 + 0.999·b with b from Beta(1.5, 1), so most times are near noise. That
        is π0's distribution (Black et al., 2024, arXiv:2410.24164, appendix B).

        Args:
            observation: n observations.
            actions: Expert actions of the environment, float32 ``[n, H, A]``.
            mask: Actions that count, bool ``[n, H]``; false after the end of a demonstration.
            sigma: Unused; there are no bins to smooth over.
            uniforms: Random numbers in [0, 1) for the noise and then the time, float32 ``[n, H·Amax + 1]``.

        Returns:
            Mean of the squared errors over the imitated dimensions, times A, summed over actions inside the mask.
        """
        del sigma
        seen = {name: values.to(self._device) for name, values in observation.items()}
        target = self._flow_vla.statistics.standardise("action", actions.to(self._device), self._size)
        uniforms = uniforms.to(self._device)
        noise = standard_normals(uniforms[:, :-1]).unflatten(-1, target.shape[1:])
        times = 0.001 + 0.999 * uniforms[:, -1:] ** (1 / 1.5)
        points = times[:, None] * noise + (1 - times[:, None]) * target
        velocities = self.model(*self._inputs(seen), points[:, None], times)
        errors = (velocities - (noise - target)).square()[..., : self.num_imitated_dims].mean(-1)
        return self.config.action_dim * (errors * mask.to(self._device)).sum()

    @property
    def _flow_vla(self) -> FlowVLA:
        return cast(FlowVLA, self.model)

    def _denoise(
        self, seen: Mapping[str, torch.Tensor], normals: torch.Tensor | None, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the chains from noise to actions, float32 ``[n, H, K + 1, Amax]``, and the velocities along them.

        Args:
            seen: n observations.
            normals: Normals of the initial noise and of each step, float32 ``[n, H, K + 1, Amax]``; those of the
                initial noise alone, ``[n, H, 1, Amax]``, or ``None`` for its mean, take steps without noise.
            temperature: Temperature of the steps.
        """
        context = self._flow_vla.read(*self._inputs(seen))
        num_rows = len(context.hidden)
        if normals is None:
            normals = context.hidden.new_zeros(num_rows, self.horizon, 1, self._size)

        def velocity(points: torch.Tensor, step: int) -> torch.Tensor:
            return self._flow_vla.model.velocity(context, points, points.new_full((num_rows,), self.flow.times[step]))

        start, of_steps = normals[:, :, 0], normals[:, :, 1:] if normals.shape[2] > 1 else None
        return denoise(self.flow, self.flow.num_steps, velocity, start, of_steps, temperature)

    def _log_probs(self, chain: torch.Tensor, velocities: torch.Tensor, temperature: float) -> torch.Tensor:
        """Return the log-probs of chains from noise to actions, float32 ``[n, L]``."""
        each = self.flow.log_probs(chain, velocities, temperature)
        return each[:, : self.config.chunk_size, :, : self.config.action_dim].sum(-1).flatten(1)

    def _chain(self, flat: torch.Tensor) -> torch.Tensor:
        return flat.unflatten(-1, (self.horizon, self.config.num_steps + 1, self._size))

    def _inputs(self, seen: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return pixels(self.layout, self.config, self.description, seen), seen["instruction_ids"], seen["state"]


def pixels(
    layout: Layout, config: FlowVLAConfig, description: Description, seen: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    """Return the pixels of K cameras for the vision tower, float32 ``[n, K, 3, H, W]``."""
    size = layout.image_size(description.config)
    return torch.stack([prepare_images(seen[camera], size, centred=layout.centred) for camera in config.cameras], dim=1)
