"""The Gaussian policy as an :class:`~embodyflow.policies.base.ActingPolicy`."""

import math
from typing import cast

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor
from torch.nn import functional

from embodyflow.policies.base import Decision, StepDecisions
from embodyflow.policies.control.mlp.policy_mlp import MLPPolicy
from embodyflow.policies.control.mlp_gaussian.configuration_mlp_gaussian import MLPGaussianConfig
from embodyflow.policies.control.mlp_gaussian.modeling_mlp_gaussian import (
    MLPGaussian,
    gaussian_entropy,
    gaussian_log_prob,
)
from embodyflow.policies.flow_sde import standard_normals


class MLPGaussianPolicy(MLPPolicy):
    """Samples one action from a Gaussian per decision.

    ``action_tokens`` records the sample itself, float32 ``[..., A]``; environments get it clipped to their bounds. A
    sample has one log-prob, so L is 1.

    Args:
        config: Sizes.
        device: Device of the model.
    """

    token_dtype = np.dtype(np.float32)

    def __init__(self, config: MLPGaussianConfig, device: str) -> None:
        super().__init__(config, MLPGaussian(config), device)

    def act(self, observation: dict[str, np.ndarray], uniforms: np.ndarray | None, temperature: float) -> Decision:
        """Decide for n environments; see :class:`~embodyflow.policies.base.ActingPolicy`.

        Args:
            observation: ``state``, float32 ``[n, S]``.
            uniforms: Random numbers in [0, 1), ``[n, A]``, mapped to standard normals; ``None`` takes the mean.
            temperature: Factor of the variance: the density is raised to 1/temperature.
        """
        state = observation["state"]
        if uniforms is None:
            return self._decisions(torch.zeros(1, len(state), self.num_draws), temperature)(0, state)
        return self.prepare_steps(uniforms[None], temperature)(0, state)

    def prepare_steps(self, uniforms: np.ndarray, temperature: float) -> StepDecisions:
        """Prepare the decisions of T steps; see :class:`~embodyflow.policies.base.StepwisePolicy`.

        Args:
            uniforms: Random numbers in [0, 1), ``[T, n, A]``, mapped to standard normals.
            temperature: Factor of the variance: the density is raised to 1/temperature.
        """
        return self._decisions(standard_normals(torch.from_numpy(uniforms)), temperature)

    @torch.inference_mode()
    def _decisions(self, normals: Tensor, temperature: float) -> StepDecisions:
        """Return decisions by standard normals ``[T, n, A]``: a step computes its means alone."""
        model, normals = cast(MLPGaussian, self.model), normals.to(self._device)
        log_std = model.log_std + 0.5 * math.log(temperature)
        log_probs = gaussian_log_prob(normals, log_std)[..., None].cpu().numpy()
        deviations = (log_std.exp() * normals).unbind()
        features, device = model.frozen_features(), self._device
        weight, bias = model.mean.weight.detach(), model.mean.bias.detach()

        def decide(t: int, states: np.ndarray) -> Decision:
            means = functional.linear(features(torch.from_numpy(states).to(device)), weight, bias)
            actions = means.add_(deviations[t]).cpu().numpy()
            return Decision(actions, log_probs[t], actions[:, None])

        return decide

    def evaluate(self, batch: TensorDict, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probs and entropy of a batch's actions, float32 ``[N, T, 1]``; zero outside its mask."""
        mask, actions = batch["loss_mask"].to(self._device), batch["action_tokens"].to(self._device)
        mean, log_std = self.model(batch["state"].to(self._device))
        log_std = log_std + 0.5 * math.log(temperature)
        log_probs = gaussian_log_prob((actions - mean) * torch.exp(-log_std), log_std).unsqueeze(-1)
        return log_probs.where(mask, 0.0), gaussian_entropy(log_std).where(mask, 0.0)
