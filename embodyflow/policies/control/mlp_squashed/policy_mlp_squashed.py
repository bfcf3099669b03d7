"""The squashed Gaussian policy as an :class:`~embodyflow.policies.base.OffPolicy`."""

import math

import numpy as np
import torch
from tensordict import TensorDict

from embodyflow.policies.base import Decision
from embodyflow.policies.control.mlp.policy_mlp import MLPPolicy
from embodyflow.policies.control.mlp_squashed.configuration_mlp_squashed import MLPSquashedConfig
from embodyflow.policies.control.mlp_squashed.modeling_mlp_squashed import MLPSquashed, squash
from embodyflow.policies.flow_sde import standard_normals

LARGEST_ACTION = 1 - 1e-6
"""Bound of an action whose sample is recovered: float32 cannot tell larger ones from 1."""

LARGEST_TARGET = 0.99
"""Bound of an imitated action, whose sample before squashing would be infinite at 1."""


class SquashedGaussianPolicy(MLPPolicy):
    """Base of policies whose decisions are samples of a Gaussian that are squashed by tanh into [-1, 1]."""

    token_dtype = np.dtype(np.float32)
    _squash = staticmethod(squash)

    def _decide(
        self, state: torch.Tensor, uniforms: np.ndarray | None, temperature: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of n decisions and the log-density of each, both float32 ``[n, C·A]``.

        Args:
            state: States, float32 ``[n, S]``, or what else the network reads.
            uniforms: Random numbers in [0, 1), ``[n, C·A]``, mapped to standard normals; ``None`` squashes the mean.
            temperature: Factor of the variance before squashing.
        """
        mean, log_std = self.model(state.to(self._device))
        noise = torch.zeros_like(mean)
        if uniforms is not None:
            noise = standard_normals(torch.from_numpy(uniforms)).to(mean)
        numbers, log_probs = self._squash(mean, log_std + 0.5 * math.log(temperature), noise)
        return numbers.cpu().numpy(), log_probs.cpu().numpy()

    def sample(self, state: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return decisions and log-densities; see :class:`~embodyflow.policies.base.OffPolicy`."""
        mean, log_std = self.model(state.to(self._device))
        numbers, log_probs = squash(mean, log_std, noise.to(self._device))
        return numbers, log_probs.sum(-1)

    def log_density(self, state: torch.Tensor, decisions: torch.Tensor) -> torch.Tensor:
        """Return the log-densities of decisions within the bound of imitated ones, ``[B]``."""
        return self._log_densities(state, decisions.clamp(-LARGEST_TARGET, LARGEST_TARGET), 1.0).sum(-1)

    def _log_densities(self, state: torch.Tensor, numbers: torch.Tensor, temperature: float) -> torch.Tensor:
        """Return the log-density of each number of decisions ``[..., C·A]`` in states ``[..., S]``."""
        mean, log_std = self.model(state.to(self._device))
        log_std = log_std + 0.5 * math.log(temperature)
        samples = torch.atanh(numbers.to(self._device).clamp(-LARGEST_ACTION, LARGEST_ACTION))
        return squash(mean, log_std, (samples - mean) * torch.exp(-log_std))[1]


class SingleActionPolicy(SquashedGaussianPolicy):
    """Base of policies that sample one action per decision; ``action_tokens`` records it, float32 ``[..., A]``."""

    @torch.inference_mode()
    def act(self, observation: dict[str, np.ndarray], uniforms: np.ndarray | None, temperature: float) -> Decision:
        """Decide for n environments; see :class:`~embodyflow.policies.base.ActingPolicy`.

        Args:
            observation: ``state``, float32 ``[n, S]``.
            uniforms: Random numbers in [0, 1), ``[n, A]``, mapped to standard normals; ``None`` squashes the mean.
            temperature: Factor of the variance before squashing.
        """
        actions, log_probs = self._decide(torch.from_numpy(observation["state"]), uniforms, temperature)
        return Decision(actions, log_probs.sum(-1, keepdims=True), actions[:, None])

    def evaluate(self, batch: TensorDict, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-densities of a batch's actions, float32 ``[N, T, 1]``, and as entropy their negative.

        Both are zero outside the mask. The entropy has no closed form; the negative is an estimate by one sample.
        """
        mask = batch["loss_mask"].to(self._device)
        log_probs = self._log_densities(batch["state"], batch["action_tokens"], temperature).sum(-1, keepdim=True)
        return log_probs.where(mask, 0.0), -log_probs.where(mask, 0.0)


class MLPSquashedPolicy(SingleActionPolicy):
    """Samples one action in [-1, 1] per decision; ``action_tokens`` records it, float32 ``[..., A]``.

    Args:
        config: Sizes.
        device: Device of the model.
    """

    def __init__(self, config: MLPSquashedConfig, device: str) -> None:
        super().__init__(config, MLPSquashed(config), device)
