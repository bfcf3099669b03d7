"""The deterministic policy as a :class:`~embodyflow.policies.base.DeterministicPolicy`."""

import math

import numpy as np
import torch
from tensordict import TensorDict

from embodyflow.policies.base import Decision
from embodyflow.policies.control.mlp.policy_mlp import MLPPolicy
from embodyflow.policies.control.mlp_deterministic.configuration_mlp_deterministic import MLPDeterministicConfig
from embodyflow.policies.control.mlp_deterministic.modeling_mlp_deterministic import MLPDeterministic
from embodyflow.policies.flow_sde import standard_normals


class MLPDeterministicPolicy(MLPPolicy):
    """Decides on one action in [-1, 1]; ``action_tokens`` records it with its noise, float32 ``[..., A]``.

    Sampled actions have Gaussian noise and are clipped to [-1, 1].

    Args:
        config: Sizes, and the deviation of the noise.
        device: Device of the model.
    """

    token_dtype = np.dtype(np.float32)

    def __init__(self, config: MLPDeterministicConfig, device: str) -> None:
        super().__init__(config, MLPDeterministic(config), device)
        self._deviation = config.exploration_noise

    @torch.inference_mode()
    def act(self, observation: dict[str, np.ndarray], uniforms: np.ndarray | None, temperature: float) -> Decision:
        """Decide for n environments; see :class:`~embodyflow.policies.base.ActingPolicy`.

        Args:
            observation: ``state``, float32 ``[n, S]``.
            uniforms: Random numbers in [0, 1), ``[n, A]``, mapped to standard normals; ``None`` adds no noise.
            temperature: Factor of the noise's variance.
        """
        decided = self.model(torch.from_numpy(observation["state"]).to(self._device))
        actions, deviation = decided, self._deviation * math.sqrt(temperature)
        if uniforms is not None:
            normals = standard_normals(torch.from_numpy(uniforms)).to(decided)
            actions = (decided + deviation * normals).clamp(-1, 1)
        log_probs = _log_density(actions - decided, deviation).cpu().numpy()
        numbers = actions.cpu().numpy()
        return Decision(numbers, log_probs, numbers[:, None])

    def decide(self, state: torch.Tensor) -> torch.Tensor:
        """Return actions without noise, float32 ``[B, A]``, with gradients to the weights."""
        actions: torch.Tensor = self.model(state.to(self._device))
        return actions

    def evaluate(self, batch: TensorDict, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-densities of a batch's actions before clipping, and the noise's entropy, float32 ``[N, T, 1]``.

        Both are zero outside the mask.
        """
        mask, deviation = batch["loss_mask"].to(self._device), self._deviation * math.sqrt(temperature)
        errors = batch["action_tokens"].to(self._device) - self.decide(batch["state"])
        log_probs = _log_density(errors, deviation).where(mask, 0.0)
        entropy = errors.shape[-1] * (0.5 * math.log(2 * math.pi * math.e) + math.log(deviation))
        return log_probs, torch.full_like(log_probs, entropy).where(mask, 0.0)


def _log_density(errors: torch.Tensor, deviation: float) -> torch.Tensor:
    """Return the log-densities of Gaussian noise ``[..., A]``, summed, ``[..., 1]``."""
    constant = math.log(deviation) + 0.5 * math.log(2 * math.pi)
    return (-0.5 * (errors / deviation).square() - constant).sum(-1, keepdim=True)
