"""Such a policy behind the interface of :mod:`embodyflow.policies.base`."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, cast

import numpy as np
import torch
from tensordict import TensorDict

from embodyflow.policies.base import Decision
from embodyflow.policies.decisions import at_decisions, decisions
from embodyflow.policies.flow_sde import FlowSDE, standard_normals
from embodyflow.policies.flow_vla.checkpoint_flow_vla import Description, Layout, describe
from embodyflow.policies.flow_vla.configuration_flow_vla import FlowVLAConfig
from embodyflow.policies.flow_vla.export_flow_vla import write_checkpoint
from embodyflow.policies.flow_vla.images_flow_vla import prepare_images
from embodyflow.policies.flow_vla.modeling_flow_vla import FlowVLA
from embodyflow.policies.flow_vla.tokenizer_flow_vla import prompt_ids


class FlowVLAPolicy(ABC):
    """Acts by denoising in Gaussian steps, whose densities it learns by.

    What it records as ``action_tokens`` is the way from noise to action, float32 ``[H, K + 1, Amax]``: K steps lie
    between K + 1 points, for each action that is planned, padding included. A log-prob is that of one step of one of
    the C actions that are executed; as in πRL the dimensions of the padding, and the actions after those, are left out
    of it, they are not acted by.

    Args:
        config: which model, what it sees and how it explores.
        device: where it lies.

    Attributes:
        layout: of its checkpoints.
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
        """Return the model of its description, in float32, of a checkpoint's weights or of random ones.

        Raises:
            ConfigError: the weights are not those of a model of this description.
        """

    @property
    @abstractmethod
    def horizon(self) -> int:
        """H, actions that are denoised together, of which the first C are executed."""

    @property
    @abstractmethod
    def num_imitated_dims(self) -> int:
        """Dimensions of an action that the imitation loss is the mean over."""

    @property
    def blocks(self) -> Sequence[torch.nn.Module]:
        """The transformer blocks of vision tower, language model and expert."""
        return self._whole.blocks

    def encode_instruction(self, instruction: str) -> np.ndarray:
        """Return the prompt as int64 ``[I]``; 0 is padding."""
        return prompt_ids(self.tokenizer, instruction, self.config.max_prompt_tokens)

    @torch.inference_mode()
    def act(self, observation: dict[str, np.ndarray], uniforms: np.ndarray | None, temperature: float) -> Decision:
        """Decide for n environments; see :class:`~embodyflow.policies.base.ActingPolicy`.

        Args:
            observation: see there.
            uniforms: float32 ``[n, H·(K + 1)·Amax]``, made the noise that is begun with and the noise of each step;
                ``None`` goes from the noise's mean by the ordinary differential equation.
            temperature: each step's density is raised to 1/temperature: its variance is multiplied by it.
        """
        keys = (*self.config.observation_keys, "instruction_ids")
        seen = {key: torch.from_numpy(observation[key]).to(self._device) for key in keys}
        normals = None if uniforms is None else standard_normals(self._chain(torch.from_numpy(uniforms)))
        chain, velocities = self._denoise(seen, None if normals is None else normals.to(self._device), temperature)
        log_probs = self._log_probs(chain, velocities, temperature)
        actions = self._whole.statistics.actions(chain[:, : self.config.chunk_size, -1])
        return Decision(chain.flatten(1).cpu().numpy(), log_probs.cpu().numpy(), actions.cpu().numpy())

    def evaluate(self, batch: TensorDict, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probs and entropy, float32 ``[N, T, L]``, of a batch's steps; zero outside its mask."""
        decided, seen = decisions(batch, [*self.config.observation_keys, "action_tokens"], self._device)
        chain = self._chain(seen["action_tokens"])
        times = torch.tensor(self.flow.times, device=self._device).expand(len(chain), -1)
        velocities = self.model(*self._inputs(seen), chain[:, :, :-1].transpose(1, 2), times)
        velocities = velocities.unflatten(0, times.shape).transpose(1, 2)
        log_probs = self._log_probs(chain, velocities, temperature)
        entropy = self.config.action_dim * self.flow.entropy(chain, temperature).expand(
            len(chain), self.config.chunk_size, -1
        )
        mask = batch["loss_mask"].to(self._device)
        return at_decisions(log_probs, decided, mask), at_decisions(entropy.flatten(1), decided, mask)

    def export(self, weights: Mapping[str, np.ndarray], folder: Path) -> None:
        """Write a folder as LeRobot does, that ``policy.path`` can be given."""
        write_checkpoint(self.layout, self.config, self.description, self.tokenizer, weights, folder)

    def set_normalization(self, states: torch.Tensor, actions: torch.Tensor) -> None:
        """Standardise by the statistics of these, float32 ``[n, S]`` and ``[n, A]``, unless the checkpoint has some."""
        if self.config.normalization == "checkpoint":
            return
        for name, values in (("state", states), ("action", actions)):
            self._whole.statistics.get_buffer(f"{name}_mean").copy_(values.mean(0))
            deviation = values.std(0, correction=min(len(values) - 1, 1))  # 0 of a single one
            self._whole.statistics.get_buffer(f"{name}_std").copy_(deviation.clamp(min=1e-2))

    def imitation_loss(
        self,
        observation: dict[str, torch.Tensor],
        actions: torch.Tensor,
        mask: torch.Tensor,
        sigma: float,
        uniforms: torch.Tensor,
    ) -> torch.Tensor:
        """Return the flow-matching loss: by how much the velocity towards the expert's actions is missed.

        A sample is noised at one time, (0.001 + 0.999·b) with b of Beta(1.5, 1), as π0 has it (Black et al., 2024,
        arXiv:2410.24164, appendix B), so that most times are near noise.

        Args:
            observation: n observations.
            actions: float32 ``[n, H, A]``, the environment's.
            mask: bool ``[n, H]``, false for actions after the end of a demonstration.
            sigma: there are no bins to smooth over.
            uniforms: float32 ``[n, H·Amax + 1]`` in [0, 1), made the noise, and then the time.

        Returns:
            The squared errors' mean over the imitated dimensions, times A, summed over actions in the mask.
        """
        del sigma
        seen = {name: values.to(self._device) for name, values in observation.items()}
        target = self._whole.statistics.standard("action", actions.to(self._device), self._size)
        uniforms = uniforms.to(self._device)
        noise = standard_normals(uniforms[:, :-1]).unflatten(-1, target.shape[1:])
        times = 0.001 + 0.999 * uniforms[:, -1:] ** (1 / 1.5)
        points = times[:, None] * noise + (1 - times[:, None]) * target
        velocities = self.model(*self._inputs(seen), points[:, None], times)
        errors = (velocities - (noise - target)).square()[..., : self.num_imitated_dims].mean(-1)
        return self.config.action_dim * (errors * mask.to(self._device)).sum()

    @property
    def _whole(self) -> FlowVLA:
        return cast(FlowVLA, self.model)

    def _denoise(
        self, seen: Mapping[str, torch.Tensor], normals: torch.Tensor | None, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the way from noise to actions, float32 ``[n, H, K + 1, Amax]``, and the velocities on it."""
        context = self._whole.read(*self._inputs(seen))
        size = (len(context.hidden), self.horizon, self._size)
        points = [context.hidden.new_zeros(size) if normals is None else normals[:, :, 0]]
        velocities = []
        for step, time in enumerate(self.flow.times):
            here = points[-1]
            velocities.append(self._whole.model.velocity(context, here, here.new_full(size[:1], time)))
            if normals is None:
                points.append(self.flow.certain(here, velocities[-1]))
                continue
            one = slice(step, step + 1)
            mean = self.flow.means(here[:, :, None], velocities[-1][:, :, None], one)
            noise = self.flow.deviations(one, here, temperature) * normals[:, :, step + 1, None]
            points.append((mean + noise)[:, :, 0])
        return torch.stack(points, dim=2), torch.stack(velocities, dim=2)

    def _log_probs(self, chain: torch.Tensor, velocities: torch.Tensor, temperature: float) -> torch.Tensor:
        """Return the log-probs, float32 ``[n, L]``, of ways from noise to actions."""
        each = self.flow.log_probs(chain, velocities, temperature)
        return each[:, : self.config.chunk_size, :, : self.config.action_dim].sum(-1).flatten(1)

    def _chain(self, flat: torch.Tensor) -> torch.Tensor:
        return flat.unflatten(-1, (self.horizon, self.config.num_steps + 1, self._size))

    def _inputs(self, seen: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return pixels(self.layout, self.config, self.description, seen), seen["instruction_ids"], seen["state"]


def pixels(
    layout: Layout, config: FlowVLAConfig, description: Description, seen: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    """Return what the vision tower sees of every camera, float32 ``[n, K, 3, H, W]``."""
    size = layout.image_size(description.config)
    return torch.stack([prepare_images(seen[camera], size, centred=layout.centred) for camera in config.cameras], dim=1)
