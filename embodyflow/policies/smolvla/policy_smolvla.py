"""SmolVLA behind the interface of :mod:`embodyflow.policies.base`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from tensordict import TensorDict

from embodyflow.policies.base import Decision
from embodyflow.policies.decisions import at_decisions, decisions
from embodyflow.policies.flow_sde import FlowSDE, standard_normals
from embodyflow.policies.prompts import load_tokenizer
from embodyflow.policies.smolvla.checkpoint_smolvla import Description, describe_scratch, read_checkpoint
from embodyflow.policies.smolvla.configuration_smolvla import SmolVLAConfig
from embodyflow.policies.smolvla.export_smolvla import write_checkpoint
from embodyflow.policies.smolvla.images_smolvla import prepare_images
from embodyflow.policies.smolvla.modeling_smolvla import SmolVLA, build_model
from embodyflow.policies.smolvla.tokenizer_smolvla import prompt_ids


class SmolVLAPolicy:
    """Acts by denoising in Gaussian steps, whose densities it learns by.

    What it records as ``action_tokens`` is the way from noise to action, float32 ``[C, K + 1, Amax]``: K steps lie
    between K + 1 points, for each action of the chunk, padding included. A log-prob is that of one step of one action;
    as in πRL the dimensions of the padding are left out of it, they are not acted by.

    Args:
        config: which model, what it sees and how it explores.
        device: where it lies.
    """

    token_dtype = np.dtype(np.float32)

    def __init__(self, config: SmolVLAConfig, device: str) -> None:
        self.config = config
        self.description, self.tokenizer = describe(config)
        self.model: torch.nn.Module = build_model(self.description, config.train_expert_only).to(device)
        self.flow = FlowSDE(config.num_steps, config.noise_level)
        self._size = int(self.description.config["max_action_dim"])
        self.num_tokens = config.num_action_tokens
        self.num_draws = config.chunk_size * (config.num_steps + 1) * self._size
        self.num_imitation_draws = config.chunk_size * self._size + 1
        self._device = device

    @property
    def blocks(self) -> Sequence[torch.nn.Module]:
        """The transformer blocks of vision tower, language model and expert."""
        return self._smolvla.blocks

    def encode_instruction(self, instruction: str) -> np.ndarray:
        """Return the prompt as int64 ``[I]``; 0 is padding."""
        return prompt_ids(self.tokenizer, instruction, self.config.max_prompt_tokens)

    @torch.inference_mode()
    def act(self, observation: dict[str, np.ndarray], uniforms: np.ndarray | None, temperature: float) -> Decision:
        """Decide for n environments; see :class:`~embodyflow.policies.base.ActingPolicy`.

        Args:
            observation: see there.
            uniforms: float32 ``[n, C·(K + 1)·Amax]``, made the noise that is begun with and the noise of each step;
                ``None`` goes from the noise's mean by the ordinary differential equation.
            temperature: each step's density is raised to 1/temperature: its variance is multiplied by it.
        """
        keys = (*self.config.observation_keys, "instruction_ids")
        seen = {key: torch.from_numpy(observation[key]).to(self._device) for key in keys}
        normals = None if uniforms is None else standard_normals(self._chain(torch.from_numpy(uniforms)))
        chain, velocities = self._denoise(seen, None if normals is None else normals.to(self._device), temperature)
        log_probs = self._log_probs(chain, velocities, temperature)
        actions = self._smolvla.statistics.actions(chain[:, :, -1])
        return Decision(chain.flatten(1).cpu().numpy(), log_probs.cpu().numpy(), actions.cpu().numpy())

    def evaluate(self, batch: TensorDict, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probs and entropy, float32 ``[N, T, L]``, of a batch's steps; zero outside its mask."""
        decided, seen = decisions(batch, [*self.config.observation_keys, "action_tokens"], self._device)
        chain = self._chain(seen["action_tokens"])
        times = torch.tensor(self.flow.times, device=self._device).expand(len(chain), -1)
        velocities = self.model(*self._inputs(seen), chain[:, :, :-1].transpose(1, 2), times)
        velocities = velocities.unflatten(0, times.shape).transpose(1, 2)
        log_probs = self._log_probs(chain, velocities, temperature)
        entropy = self.config.action_dim * self.flow.entropy(chain, temperature).expand(*chain.shape[:2], -1)
        mask = batch["loss_mask"].to(self._device)
        return at_decisions(log_probs, decided, mask), at_decisions(entropy.flatten(1), decided, mask)

    def export(self, weights: Mapping[str, np.ndarray], folder: Path) -> None:
        """Write a folder as LeRobot does, that ``policy.path`` can be given."""
        write_checkpoint(self.config, self.description, self.tokenizer, weights, folder)

    def set_normalization(self, states: torch.Tensor, actions: torch.Tensor) -> None:
        """Standardise by the statistics of these, float32 ``[n, S]`` and ``[n, A]``, unless the checkpoint has some."""
        if self.config.normalization == "checkpoint":
            return
        for name, values in (("state", states), ("action", actions)):
            self._smolvla.statistics.get_buffer(f"{name}_mean").copy_(values.mean(0))
            self._smolvla.statistics.get_buffer(f"{name}_std").copy_(values.std(0).clamp(min=1e-2))

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
            actions: float32 ``[n, C, A]``, the environment's.
            mask: bool ``[n, C]``, false for actions after the end of a demonstration.
            sigma: there are no bins to smooth over.
            uniforms: float32 ``[n, C·Amax + 1]`` in [0, 1), made the noise, and then the time.

        Returns:
            The squared errors' mean over the dimensions, padding included, times A, summed over actions in the mask.
        """
        del sigma
        seen = {name: values.to(self._device) for name, values in observation.items()}
        target = self._smolvla.statistics.standard("action", actions.to(self._device), self._size)
        uniforms = uniforms.to(self._device)
        noise = standard_normals(uniforms[:, :-1]).unflatten(-1, target.shape[1:])
        times = 0.001 + 0.999 * uniforms[:, -1:] ** (1 / 1.5)
        points = times[:, None] * noise + (1 - times[:, None]) * target
        velocities = self.model(*self._inputs(seen), points[:, None], times)
        errors = (velocities - (noise - target)).square().mean(-1)
        return self.config.action_dim * (errors * mask.to(self._device)).sum()

    @property
    def _smolvla(self) -> SmolVLA:
        return cast(SmolVLA, self.model)

    def _denoise(
        self, seen: Mapping[str, torch.Tensor], normals: torch.Tensor | None, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the way from noise to actions, float32 ``[n, C, K + 1, Amax]``, and the velocities on it."""
        context = self._smolvla.read(*self._inputs(seen))
        size = (len(context.hidden), self.config.chunk_size, self._size)
        points = [context.hidden.new_zeros(size) if normals is None else normals[:, :, 0]]
        velocities = []
        for step, time in enumerate(self.flow.times):
            here = points[-1]
            velocities.append(self._smolvla.model.velocity(context, here, here.new_full(size[:1], time)))
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
        each = self.flow.log_probs(chain, velocities, temperature)[..., : self.config.action_dim]
        return each.sum(-1).flatten(1)

    def _chain(self, flat: torch.Tensor) -> torch.Tensor:
        return flat.unflatten(-1, (self.config.chunk_size, self.config.num_steps + 1, self._size))

    def _inputs(self, seen: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return pixels(self.config, self.description, seen), seen["instruction_ids"], seen["state"]


def describe(config: SmolVLAConfig) -> tuple[Description, Any]:
    """Return a model's description and its tokenizer, of ``transformers``; weights are fetched, not read."""
    if config.scratch is None:
        description = read_checkpoint(config, weights=True)
        return description, load_tokenizer(config, description.vlm_folder)
    tokenizer = load_tokenizer(config, None)
    return describe_scratch(config, len(tokenizer)), tokenizer


def pixels(config: SmolVLAConfig, description: Description, seen: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return what the vision tower sees of every camera, float32 ``[n, K, 3, H, W]``."""
    size = description.config["resize_imgs_with_padding"]
    return torch.stack([prepare_images(seen[camera], size and tuple(size)) for camera in config.cameras], dim=1)
