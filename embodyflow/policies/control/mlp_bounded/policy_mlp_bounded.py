"""The Gaussian policy with bounded means as a :class:`~embodyflow.policies.base.DensityPolicy`."""

import math

import numpy as np
import torch
from tensordict import TensorDict

from embodyflow.policies.base import Decision
from embodyflow.policies.control.mlp.policy_mlp import MLPPolicy
from embodyflow.policies.control.mlp_bounded.configuration_mlp_bounded import MLPBoundedConfig
from embodyflow.policies.control.mlp_bounded.modeling_mlp_bounded import MLPBounded
from embodyflow.policies.flow_sde import standard_normals


class MLPBoundedPolicy(MLPPolicy):
    """Decides on one action in [-1, 1]; ``action_tokens`` records it, float32 ``[..., A]``.

    Samples are clipped to [-1, 1]. Their densities are those of the Gaussian, as in the paper of IQL.

    Args:
        config: Sizes.
        device: Device of the model.
    """

    token_dtype = np.dtype(np.float32)

    def __init__(self, config: MLPBoundedConfig, device: str) -> None:
        super().__init__(config, MLPBounded(config), device)

    @torch.inference_mode()
    def act(self, observation: dict[str, np.ndarray], uniforms: np.ndarray | None, temperature: float) -> Decision:
        """Decide for n environments; see :class:`~embodyflow.policies.base.ActingPolicy`.

        Args:
            observation: ``state``, float32 ``[n, S]``.
            uniforms: Random numbers in [0, 1), ``[n, A]``, mapped to standard normals; ``None`` takes the mean.
            temperature: Factor of the variance.
        """
        mean, log_std = self._gaussian(torch.from_numpy(observation["state"]), temperature)
        actions = mean
        if uniforms is not None:
            normals = standard_normals(torch.from_numpy(uniforms)).to(mean)
            actions = (mean + log_std.exp() * normals).clamp(-1, 1)
        log_probs = _log_densities(actions, mean, log_std).sum(-1, keepdim=True)
        numbers = actions.cpu().numpy()
        return Decision(numbers, log_probs.cpu().numpy(), numbers[:, None])

    def log_density(self, state: torch.Tensor, decisions: torch.Tensor) -> torch.Tensor:
        """Return the log-densities of decisions; see :class:`~embodyflow.policies.base.DensityPolicy`."""
        mean, log_std = self._gaussian(state, 1.0)
        return _log_densities(decisions.to(self._device), mean, log_std).sum(-1)

    def evaluate(self, batch: TensorDict, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-densities of a batch's actions, and the Gaussian's entropy, float32 ``[N, T, 1]``.

        Both are zero outside the mask.
        """
        mask = batch["loss_mask"].to(self._device)
        mean, log_std = self._gaussian(batch["state"], temperature)
        log_probs = _log_densities(batch["action_tokens"].to(self._device), mean, log_std).sum(-1, keepdim=True)
        entropy = (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum()
        return log_probs.where(mask, 0.0), entropy.expand_as(log_probs).where(mask, 0.0)

    def _gaussian(self, state: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return means ``[..., A]`` of states ``[..., S]``, and log-deviations ``[A]`` at a temperature."""
        mean, log_std = self.model(state.to(self._device))
        return mean, log_std + 0.5 * math.log(temperature)


def _log_densities(actions: torch.Tensor, mean: torch.Tensor, log_std: torch.Tensor) -> torch.Tensor:
    """Return the log-density of each number of actions ``[..., A]``."""
    return -0.5 * ((actions - mean) * (-log_std).exp()).square() - log_std - 0.5 * math.log(2 * math.pi)
