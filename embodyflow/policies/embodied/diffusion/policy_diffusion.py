"""The diffusion policy as an :class:`~embodyflow.policies.base.ImitatingPolicy`."""

from typing import cast

import numpy as np
import torch
from tensordict import TensorDict

from embodyflow.policies.base import Decision, NormalizationStatistics
from embodyflow.policies.control.mlp.policy_mlp import MLPPolicy
from embodyflow.policies.decisions import at_decisions, decisions
from embodyflow.policies.embodied.denoising import denoise
from embodyflow.policies.embodied.diffusion.configuration_diffusion import DiffusionConfig
from embodyflow.policies.embodied.diffusion.modeling_diffusion import Diffusion
from embodyflow.policies.embodied.diffusion.steps_diffusion import DenoisingSteps
from embodyflow.policies.flow_sde import standard_normals


class DiffusionPolicy(MLPPolicy):
    """Denoises a chunk of C actions in K Gaussian steps (Chi et al., 2023, arXiv:2303.04137).

    ``action_tokens`` records the chain from noise to actions, float32 ``[C, K + 1, A]``, in deviations of the
    demonstrated actions. Each of the last K' steps of each action has a log-prob, which RL trains on (DPPO, Ren et al.,
    2024, arXiv:2409.00588). The steps before them draw where these begin, and RL leaves them as they are.

    Args:
        config: Sizes and denoising steps.
        device: Device of the model.
    """

    token_dtype = np.dtype(np.float32)

    def __init__(self, config: DiffusionConfig, device: str) -> None:
        self.steps = DenoisingSteps(
            config.num_noise_levels,
            config.num_steps,
            eta=config.eta,
            min_noise=config.min_noise,
            min_log_prob_noise=config.min_log_prob_noise,
        )
        first = config.num_steps - config.num_trained_steps
        super().__init__(config, Diffusion(config, self.steps.levels[first]), device)
        self.num_draws = config.decision_dim * (config.num_steps + 1)
        self.num_imitation_draws = config.decision_dim + 1
        self._trained, self._num_levels = slice(first, None), config.num_noise_levels
        self._shape = (config.chunk_size, config.num_steps + 1, config.action_dim)

    @torch.inference_mode()
    def act(self, observation: dict[str, np.ndarray], uniforms: np.ndarray | None, temperature: float) -> Decision:
        """Decide for n environments; see :class:`~embodyflow.policies.base.ActingPolicy`.

        Args:
            observation: ``state``, float32 ``[n, S]``.
            uniforms: Random numbers in [0, 1), float32 ``[n, C·(K + 1)·A]``, for the initial noise and that of each
                step; ``None`` takes steps without noise, those of η = 0, from the noise's mean.
            temperature: Factor of each step's variance: its density is raised to 1/temperature.
        """
        state = torch.from_numpy(observation["state"]).to(self._device)
        normals = None
        if uniforms is not None:
            normals = standard_normals(self._chain(torch.from_numpy(uniforms))).to(self._device)
        chain, velocities = self._denoise(state, normals, temperature)
        log_probs = self._log_probs(chain[:, :, self._trained], velocities[:, :, self._trained], temperature)
        actions = self._diffusion.scale.actions(chain[:, :, -1])
        return Decision(chain.flatten(1).cpu().numpy(), log_probs.cpu().numpy(), actions.cpu().numpy())

    def evaluate(self, batch: TensorDict, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probs and entropy of a batch's trained steps, float32 ``[N, T, L]``; zero outside its mask."""
        decided, seen = decisions(batch, ["state", "action_tokens"], self._device)
        chain = self._chain(seen["action_tokens"])[:, :, self._trained]
        levels = torch.tensor(self.steps.levels[self._trained], device=self._device).expand(len(chain), -1)
        velocities = self.model(seen["state"], chain[:, :, :-1].transpose(1, 2), levels, all_late=True).transpose(1, 2)
        log_probs = self._log_probs(chain, velocities, temperature)
        num_actions, _, action_dim = self._shape
        entropy = action_dim * self.steps.entropy(self._trained, chain, temperature)
        entropy = entropy.expand(len(chain), num_actions, -1).flatten(1)
        mask = batch["loss_mask"].to(self._device)
        return at_decisions(log_probs, decided, mask), at_decisions(entropy, decided, mask)

    def set_normalization(self, states: torch.Tensor, actions: torch.Tensor) -> None:
        """Standardise by the mean and deviation of ``states``, float32 ``[n, S]``, and ``actions``, ``[n, A]``."""
        self._diffusion.standardize.set_statistics(states)
        self._diffusion.scale.set_statistics(actions)

    def load_normalization(self, statistics: NormalizationStatistics) -> None:
        """Standardise by the statistics of a data set."""
        self._diffusion.standardize.load(statistics.state_mean, statistics.state_std)
        self._diffusion.scale.load(statistics.action_mean, statistics.action_std)

    def imitation_loss(
        self,
        observation: dict[str, torch.Tensor],
        actions: torch.Tensor,
        mask: torch.Tensor,
        sigma: float,
        uniforms: torch.Tensor,
    ) -> torch.Tensor:
        """Return the squared errors of the velocities of noisy expert actions, summed over the numbers in the mask.

        Each sample is mixed with noise at one level, drawn evenly from 1 to N (Ho et al., 2020, arXiv:2006.11239,
        algorithm 1).

        Args:
            observation: n observations.
            actions: Expert actions of the environment, float32 ``[n, C, A]``.
            mask: Actions that count, bool ``[n, C]``; false after the end of a demonstration.
            sigma: Unused; there are no bins to smooth over.
            uniforms: Random numbers in [0, 1) for the noise and then the level, float32 ``[n, C·A + 1]``.
        """
        del sigma
        target, draws = self._diffusion.scale(actions.to(self._device)), uniforms.to(self._device)
        noise = standard_normals(draws[:, :-1]).view_as(target)
        levels = 1 + (draws[:, -1].double() * self._num_levels).long()
        points, velocities = self.steps.mixed(target, noise, levels)
        predicted = self.model(observation["state"].to(self._device), points[:, None], levels[:, None])[:, 0]
        errors = (predicted - velocities).square().sum(-1)
        return (errors * mask.to(self._device)).sum()

    @property
    def _diffusion(self) -> Diffusion:
        return cast(Diffusion, self.model)

    def _denoise(
        self, state: torch.Tensor, normals: torch.Tensor | None, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the chains from noise to actions, float32 ``[n, C, K + 1, A]``, and the velocities along them."""
        num_actions, num_points, action_dim = self._shape
        start = state.new_zeros(len(state), num_actions, action_dim) if normals is None else normals[:, :, 0]

        def velocity(points: torch.Tensor, step: int) -> torch.Tensor:
            return self._diffusion.velocity(state, points, self.steps.levels[step])

        of_steps = None if normals is None else normals[:, :, 1:]
        return denoise(self.steps, num_points - 1, velocity, start, of_steps, temperature)

    def _log_probs(self, chain: torch.Tensor, velocities: torch.Tensor, temperature: float) -> torch.Tensor:
        """Return the log-probs of the trained steps ``[n, L]``, given their points ``[n, C, K' + 1, A]``."""
        return self.steps.log_probs(chain, velocities, self._trained, temperature).sum(-1).flatten(1)

    def _chain(self, flat: torch.Tensor) -> torch.Tensor:
        return flat.unflatten(-1, self._shape)
