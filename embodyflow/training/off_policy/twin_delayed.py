"""TD3 (Fujimoto et al. 2018, arXiv:1802.09477): the models in training, and one update of them all."""

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict

from embodyflow.algorithms.off_policy import clipped_noise, deterministic_targets, squared_errors
from embodyflow.config.robots.off_policy import TwinDelayedConfig
from embodyflow.policies.base import ActionCritics, DeterministicPolicy
from embodyflow.training.off_policy.gradient_step import Metrics
from embodyflow.training.off_policy.learner import CriticsWithTargets, OffPolicyRun
from embodyflow.training.off_policy.replay.replay_buffer import Transitions


class TwinDelayed(CriticsWithTargets[DeterministicPolicy]):
    """Policy, critics and a target of each, with their optimizers.

    Args:
        policy: Policy in training; a copy of it becomes the target policy.
        critics: Its critics; a copy of them becomes the target.
        config: Run configuration.
    """

    def __init__(self, policy: DeterministicPolicy, critics: ActionCritics, config: OffPolicyRun) -> None:
        super().__init__(policy, critics, config)
        assert isinstance(config.off_policy, TwinDelayedConfig)
        self._settings = config.off_policy
        self._target_policy = copy.deepcopy(policy)
        self._target_policy.model.requires_grad_(False)
        self._first = torch.zeros(1, dtype=torch.int64)  # the critic that the policy learns from
        self._add_critics_step(self._critics_loss)
        self._add_step("policy", self._policy_loss)

    @property
    def models(self) -> list[nn.Module]:
        """Every model whose weights an update changes."""
        return [*super().models, self._target_policy.model]

    def restart(self) -> None:
        """Reset the optimizers, and make policy and critics their own targets."""
        super().restart()
        self._target_policy.model.load_state_dict(self._policy.model.state_dict())

    def update(self, batch: Transitions, rng: np.random.Generator, index: int) -> Metrics:
        """Take one step of the critics and, after ``policy_delay`` steps, of the policy and all targets.

        Args:
            batch: Transitions.
            rng: Source of the noise of the target policy's actions.
            index: Index of the update in the run, from 0.

        Raises:
            FloatingPointError: A gradient is NaN or inf; the weights of that model stay as they were.
        """
        normals = torch.from_numpy(rng.standard_normal((len(batch.returns), self._decision_dim), np.float32))
        metrics = self._train_critics(batch, normals)
        if self._updates_policy(index):
            metrics |= self._train_policy(batch.state)
            self._move(self._targets.model, self._critics.model)
            self._move(self._target_policy.model, self._policy.model)
        return metrics

    def _critics_loss(self, batch: Transitions, normals: torch.Tensor) -> tuple[torch.Tensor, Metrics]:
        with torch.no_grad():
            decided = self._target_policy.decide(batch.next_state)
            noise = clipped_noise(normals.to(decided), self._settings.target_noise, self._settings.target_noise_clip)
            next_values = self._targets.evaluate_actions(batch.next_state, (decided + noise).clamp(-1, 1))
            returns, discounts = batch.returns.to(next_values.device), batch.discounts.to(next_values.device)
            targets = deterministic_targets(returns, discounts, next_values)
        values = self._critics.evaluate_actions(batch.state, batch.action)
        weights = None if batch.weights is None else batch.weights.to(values.device)
        loss = squared_errors(values, targets, weights)
        return loss, self._metrics_of(batch, loss, values, targets)

    def _policy_loss(self, state: torch.Tensor) -> tuple[torch.Tensor, Metrics]:
        loss = -self._critics.evaluate_actions(state, self._policy.decide(state), self._first).mean()
        return loss, {"policy/loss": loss}

    def state_dict(self) -> dict[str, Any]:
        """Return all weights and moments in the form that torch.distributed.checkpoint writes and reads in place."""
        states = super().state_dict()
        states["policy"]["targets"] = get_model_state_dict(self._target_policy.model)
        return states

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load weights and moments that :meth:`state_dict` returned."""
        super().load_state_dict(state)
        self._target_policy.model.load_state_dict(state["policy"]["targets"])
