"""The policy of chunks as an :class:`~embodyflow.policies.base.OffPolicy` that also imitates."""

from collections.abc import Mapping

import numpy as np
import torch
from tensordict import TensorDict

from embodyflow.policies.base import Decision, NormalizationStatistics
from embodyflow.policies.control.mlp_squashed.policy_mlp_squashed import LARGEST_TARGET, SquashedGaussianPolicy
from embodyflow.policies.decisions import at_decisions, decisions
from embodyflow.policies.embodied.mlp_chunks.configuration_mlp_chunks import ChunksConfig, MLPChunksConfig
from embodyflow.policies.embodied.mlp_chunks.modeling_mlp_chunks import MLPChunks, squash_in_lanes
from embodyflow.policies.flow_sde import standard_normals

BINS = 256
"""Bins of [-1, 1] in which the smoothing of demonstrations is stated, those of a policy of tokens."""


class ChunksPolicy(SquashedGaussianPolicy):
    """Base of policies that sample a chunk of C actions in [-1, 1] and also imitate.

    ``action_tokens`` records the numbers of a chunk, float32 ``[..., C·A]``.

    Args:
        config: Sizes.
        model: Network of the policy; ``standardize`` standardises states.
        device: Device that the model is moved to.
    """

    _squash = staticmethod(squash_in_lanes)

    def __init__(self, config: ChunksConfig, model: torch.nn.Module, device: str) -> None:
        super().__init__(config, model, device)
        self.num_imitation_draws = config.decision_dim

    def _read(self, observation: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the state, or features of the observation, on which the Gaussian depends, ``[n, ...]``."""
        return observation["state"]

    @torch.inference_mode()
    def act(self, observation: dict[str, np.ndarray], uniforms: np.ndarray | None, temperature: float) -> Decision:
        """Decide for n environments; see :class:`~embodyflow.policies.base.ActingPolicy`."""
        tensors = {key: torch.from_numpy(observation[key]) for key in self.config.observation_keys}
        numbers, log_probs = self._decide(self._read(tensors), uniforms, temperature)
        return Decision(numbers, log_probs, numbers.reshape(len(numbers), self.config.chunk_size, -1))

    def evaluate(self, batch: TensorDict, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-densities of a batch's numbers, float32 ``[N, T, C·A]``, and as entropy their negative.

        Both are zero outside the mask. The entropy has no closed form; the negative is an estimate by one sample.
        """
        mask = batch["loss_mask"].to(self._device)
        decided, observation = decisions(batch, self.config.observation_keys, self._device)
        taken = batch["action_tokens"].to(self._device)[decided]
        if not len(taken):
            taken = taken.new_zeros(1, self.num_draws)
        log_probs = at_decisions(self._log_densities(self._read(observation), taken, temperature), decided, mask)
        return log_probs, -log_probs

    def set_normalization(self, states: torch.Tensor, actions: torch.Tensor) -> None:
        """Standardise states by the mean and deviation of ``states``, float32 ``[n, S]``; actions stay as they are."""
        self.model.standardize.set_statistics(states)  # type: ignore[union-attr,operator]

    def load_normalization(self, statistics: NormalizationStatistics) -> None:
        """Standardise states by the statistics of a data set; actions stay as they are."""
        self.model.standardize.load(statistics.state_mean, statistics.state_std)  # type: ignore[union-attr,operator]

    def imitation_loss(
        self,
        observation: dict[str, torch.Tensor],
        actions: torch.Tensor,
        mask: torch.Tensor,
        sigma: float,
        uniforms: torch.Tensor,
    ) -> torch.Tensor:
        """Return the negative log-density of expert actions with Gaussian noise, summed over the numbers in the mask.

        Without the noise the policy's deviations would shrink to nothing.

        Args:
            observation: n observations.
            actions: Expert actions, float32 ``[n, C, A]``.
            mask: Actions that count, bool ``[n, C]``; false after the end of a demonstration.
            sigma: Standard deviation of the noise, in 256ths of the range of an action.
            uniforms: Random numbers in [0, 1), float32 ``[n, C·A]``.
        """
        noise = standard_normals(uniforms).to(actions)
        targets = actions.flatten(1) + sigma * 2 / BINS * noise
        log_probs = self._log_densities(self._read(observation), targets.clamp(-LARGEST_TARGET, LARGEST_TARGET), 1.0)
        counted = mask.repeat_interleave(self.config.action_dim, 1).to(self._device)
        return -log_probs.where(counted, 0.0).sum()


class MLPChunksPolicy(ChunksPolicy):
    """Samples a chunk by the state alone.

    Args:
        config: Sizes.
        device: Device of the model.
    """

    def __init__(self, config: MLPChunksConfig, device: str) -> None:
        super().__init__(config, MLPChunks(config), device)
