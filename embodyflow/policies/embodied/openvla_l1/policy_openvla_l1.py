"""OpenVLA-OFT with a regression head as an :class:`~embodyflow.policies.base.ImitatingPolicy`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from embodyflow.policies.base import Decision, NormalizationStatistics
from embodyflow.policies.decisions import at_decisions, decisions
from embodyflow.policies.embodied.openvla.policy_openvla import OpenVLAPolicy
from embodyflow.policies.embodied.openvla_l1.configuration_openvla_l1 import OpenVLAL1Config
from embodyflow.policies.embodied.openvla_l1.modeling_openvla_l1 import build_model
from embodyflow.policies.laplace import entropies, log_densities, standard_samples


class OpenVLAL1Policy(OpenVLAPolicy):
    """Samples a chunk from a Laplace distribution around the regression head's numbers.

    ``action_tokens`` records the numbers, float32 ``[..., C·A]``, of actions scaled to [-1, 1]; each has a log-density.

    Args:
        config: Configuration of model and observations.
        device: Device of the model.
    """

    config: OpenVLAL1Config
    token_dtype = np.dtype(np.float32)

    def _build_model(self) -> torch.nn.Module:
        return build_model(self.config, self.description)

    @torch.inference_mode()
    def act(self, observation: dict[str, np.ndarray], uniforms: np.ndarray | None, temperature: float) -> Decision:
        """Decide for n environments; see :class:`~embodyflow.policies.base.ActingPolicy`.

        Args:
            observation: Images, ``instruction_ids`` and, if S > 0, ``state``, float32 ``[n, S]``.
            uniforms: Random numbers in [0, 1), float32 ``[n, C·A]``; ``None`` takes the medians.
            temperature: Factor of the scales.
        """
        keys = (*self.config.observation_keys, "instruction_ids")
        seen = {key: torch.from_numpy(observation[key]).to(self._device) for key in keys}
        medians, scales = self.model(*self._inputs(seen))
        scales = scales * temperature
        numbers = medians
        if uniforms is not None:
            numbers = medians + scales * standard_samples(torch.from_numpy(uniforms)).to(self._device)
        log_probs = log_densities(numbers, medians, scales)
        actions = self.codec.actions_of(numbers.unflatten(1, (self.config.chunk_size, -1)))
        return Decision(numbers.cpu().numpy(), log_probs.cpu().numpy(), actions.numpy())

    def evaluate(self, batch: TensorDict, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-densities and entropy of a batch's numbers, float32 ``[N, T, C·A]``; zero outside its mask."""
        log_probs, entropy, _ = self.evaluate_with_features(batch, temperature)
        return log_probs, entropy

    def evaluate_with_features(
        self, batch: TensorDict, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return log-densities, entropy and features; see :class:`~embodyflow.policies.base.FeaturePolicy`."""
        decided, seen = decisions(batch, [*self.config.observation_keys, "action_tokens"], self._device)
        model: Any = self.model
        medians, scales, features = model.forward_with_features(*self._inputs(seen))
        scales, mask = scales * temperature, batch["loss_mask"].to(self._device)
        log_probs = log_densities(seen["action_tokens"], medians, scales)
        entropy = entropies(scales).expand_as(log_probs)
        return at_decisions(log_probs, decided, mask), at_decisions(entropy, decided, mask), features

    def set_normalization(self, states: torch.Tensor, actions: torch.Tensor) -> None:
        """Scale states by the 1% and 99% quantiles of ``states``, float32 ``[n, S]``, where no checkpoint has any."""
        low, high = (torch.quantile(states.float(), share, dim=0) for share in (0.01, 0.99))
        self._scale_states(low, high)

    def load_normalization(self, statistics: NormalizationStatistics) -> None:
        """Scale states by the quantiles of a data set, where no checkpoint has any."""
        assert statistics.state_q01 is not None and statistics.state_q99 is not None, "needs_quantiles is set"
        self._scale_states(statistics.state_q01, statistics.state_q99)

    def imitation_loss(
        self,
        observation: dict[str, torch.Tensor],
        actions: torch.Tensor,
        mask: torch.Tensor,
        sigma: float,
        uniforms: torch.Tensor,
    ) -> torch.Tensor:
        """Return the absolute errors of the medians, summed over the numbers of actions inside the mask.

        The scale is left for RL: fitted to demonstrations it would shrink, and with it exploration.

        Args:
            observation: n observations.
            actions: Expert actions of the environment, float32 ``[n, C, A]``.
            mask: Actions that count, bool ``[n, C]``; false after the end of a demonstration.
            sigma: Unused; there are no bins to smooth over.
            uniforms: Unused; the loss takes no random numbers.
        """
        del sigma, uniforms
        seen = {name: values.to(self._device) for name, values in observation.items()}
        medians, scales = self.model(*self._inputs(seen))
        targets = self.codec.scaled(actions).flatten(1).float().to(self._device)
        counted = mask.repeat_interleave(self.config.action_dim, 1).to(self._device)
        errors: torch.Tensor = ((medians - targets).abs() * counted).sum()
        return errors + scales.sum() * 0.0  # a sharded parameter needs a gradient

    def _inputs(self, seen: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return pixels, prompt and, if S > 0, the state."""
        return (*super()._inputs(seen), *([seen["state"]] if self.config.state_dim else []))

    def _scale_states(self, low: torch.Tensor, high: torch.Tensor) -> None:
        if self.config.path is None and self.config.state_dim:
            self.model.set_state_quantiles(low, high)  # type: ignore[operator]
