"""A policy that steers a frozen one, as an :class:`~embodyflow.policies.base.OffPolicy` that also imitates."""

from typing import cast

import numpy as np
import torch
from tensordict import TensorDict
from torch.nn import functional

from embodyflow.policies.base import Decision, NormalizationStatistics
from embodyflow.policies.control.mlp_squashed.policy_mlp_squashed import SquashedGaussianPolicy
from embodyflow.policies.embodied.flow_vla.modeling_flow_vla import FlowVLA
from embodyflow.policies.embodied.flow_vla.policy_flow_vla import FlowVLAPolicy
from embodyflow.policies.embodied.mlp_chunks.modeling_mlp_chunks import squash_in_lanes
from embodyflow.policies.embodied.mlp_chunks.policy_mlp_chunks import BINS
from embodyflow.policies.embodied.steered.configuration_steered import SteeredConfig
from embodyflow.policies.embodied.steered.modeling_steered import SteeredFlow
from embodyflow.policies.flow_sde import standard_normals
from embodyflow.policies.policy_registry import find_policy


class SteeredPolicy(SquashedGaussianPolicy):
    """Chooses the noise from which a frozen policy denoises (DSRL, Wagenmaker et al. 2025, arXiv:2506.15799).

    Denoising draws nothing, so observation and noise decide on the chunk of actions. ``action_tokens`` records the
    noise in parts of its bound b, float32 ``[..., R]`` in [-1, 1]. R is A if the actions of a chunk share their noise,
    else C·A. Numbers that pad an action have the mean of the noise, 0, and so have planned actions that are not
    executed unless all share it.

    Args:
        config: Configuration of both policies.
        device: Device of the models.

    Attributes:
        base: The frozen policy; its model is a part of this one's.
        network: The model.
    """

    _squash = staticmethod(squash_in_lanes)

    def __init__(self, config: SteeredConfig, device: str) -> None:
        self._steering = config
        self.base = cast(FlowVLAPolicy, find_policy(config.steers).build_policy(config, device))
        self.network = SteeredFlow(cast(FlowVLA, self.base.model), config)
        super().__init__(config, self.network, device)
        self.num_imitation_draws = self.base.num_imitation_draws + self.horizon * config.action_dim
        self._num_sharing = self.num_tokens // self.num_draws  # actions that share a number of the noise

    @property
    def horizon(self) -> int:
        """H, actions that the frozen policy denoises together."""
        return self.base.horizon

    def encode_instruction(self, instruction: str) -> np.ndarray:
        """Return the frozen policy's prompt, int64 ``[I]``; 0 is padding."""
        return self.base.encode_instruction(instruction)

    @torch.inference_mode()
    def act(self, observation: dict[str, np.ndarray], uniforms: np.ndarray | None, temperature: float) -> Decision:
        """Decide for n environments; see :class:`~embodyflow.policies.base.ActingPolicy`.

        Args:
            observation: Observations of the frozen policy, see there.
            uniforms: Random numbers in [0, 1), float32 ``[n, R]``, mapped to standard normals; ``None`` takes the mean
                before squashing.
            temperature: Factor of the variance before squashing.
        """
        numbers, log_probs = self._decide(torch.from_numpy(observation["state"]), uniforms, temperature)
        actions = self.follow(observation, self.noise(torch.from_numpy(numbers)))
        return Decision(numbers, np.tile(log_probs / self._num_sharing, (1, self._num_sharing)), actions)

    @torch.inference_mode()
    def follow(self, observation: dict[str, np.ndarray], noise: torch.Tensor) -> np.ndarray:
        """Return the actions to which noise, float32 ``[n, H, Amax]``, leads the frozen policy, float32 ``[n, H, A]``.

        Args:
            observation: Observations of the frozen policy, see there.
            noise: Noise of the planned actions.
        """
        keys = (*self.config.observation_keys, "instruction_ids")
        seen = {key: torch.from_numpy(observation[key]).to(self._device) for key in keys}
        return self.base.follow(seen, noise.to(self._device)).cpu().numpy()

    def noise(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return the noise that the frozen policy starts from, float32 ``[n, H, Amax]``.

        Args:
            numbers: The chosen noise in parts of its bound, float32 ``[n, R]``.
        """
        chosen = self._steering.noise_bound * numbers.unflatten(-1, (-1, self._steering.action_dim))
        if self._steering.share_noise:
            chosen = chosen.expand(-1, self.horizon, -1)
        _, actions, dims = chosen.shape
        return functional.pad(chosen, (0, self.base.noise_dim - dims, 0, self.horizon - actions))

    def evaluate(self, batch: TensorDict, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-densities of a batch's noise, float32 ``[N, T, C·A]``, and as entropy their negative.

        Both are zero outside the mask. The entropy has no closed form; the negative is an estimate by one sample.
        """
        mask = batch["loss_mask"].to(self._device)
        each = self._log_densities(batch["state"], batch["action_tokens"], temperature) / self._num_sharing
        log_probs = torch.tile(each, (self._num_sharing,))
        return log_probs.where(mask, 0.0), -log_probs.where(mask, 0.0)

    def set_normalization(self, states: torch.Tensor, actions: torch.Tensor) -> None:
        """Set the frozen policy's statistics, by which both standardise states."""
        self.base.set_normalization(states, actions)

    def load_normalization(self, statistics: NormalizationStatistics) -> None:
        """Set the frozen policy's statistics to those of a data set."""
        self.base.load_normalization(statistics)

    def imitation_loss(
        self,
        observation: dict[str, torch.Tensor],
        actions: torch.Tensor,
        mask: torch.Tensor,
        sigma: float,
        uniforms: torch.Tensor,
    ) -> torch.Tensor:
        """Return the frozen policy's loss towards expert actions with Gaussian noise.

        The frozen policy so learns to keep a part of the noise that it starts from. Demonstrations of one way to act
        would teach it to drop the noise, and nothing would be left to steer. The distribution of the noise does not
        imitate.

        Args:
            observation: n observations of the frozen policy.
            actions: Expert actions of the environment, float32 ``[n, H, A]``.
            mask: Actions that count, bool ``[n, H]``; false after the end of a demonstration.
            sigma: Standard deviation of the noise, in 256ths of the range of an action.
            uniforms: Random numbers in [0, 1), float32 ``[n, N + H·A]``: the N of the frozen policy before those of the
                noise.
        """
        own = self.base.num_imitation_draws
        noise = standard_normals(uniforms[:, own:]).to(actions).unflatten(-1, actions.shape[1:])
        return self.base.imitation_loss(observation, actions + sigma * 2 / BINS * noise, mask, 0.0, uniforms[:, :own])
