"""Implicit Q-learning (Kostrikov et al. 2022, arXiv:2110.06169): the models in training, and one update of them all."""

import numpy as np
import torch
from torch import nn

from embodyflow.algorithms.off_policy import advantage_weights, expectile_loss, squared_errors
from embodyflow.config.robots.off_policy import ImplicitQConfig
from embodyflow.policies.base import ActionAndStateCritics, DensityPolicy
from embodyflow.training.off_policy.gradient_step import Metrics
from embodyflow.training.off_policy.learner import CriticsWithTargets, OffPolicyRun
from embodyflow.training.off_policy.replay.replay_buffer import Transitions
from embodyflow.training.trained_model import TrainedModel


class ImplicitQLearning(CriticsWithTargets[DensityPolicy]):
    """Policy, critics of actions with targets, and a critic of states, with their optimizers.

    Args:
        policy: Policy in training.
        critics: Its critics; a copy of those of actions becomes the target.
        config: Run configuration.
    """

    def __init__(self, policy: DensityPolicy, critics: ActionAndStateCritics, config: OffPolicyRun) -> None:
        super().__init__(policy, critics, config)
        assert isinstance(config.off_policy, ImplicitQConfig)
        self._settings, self._states = config.off_policy, critics
        self.trained["state_critic"] = TrainedModel(critics.state_model, config.critic.learning_rate, config.trainer)
        self._add_critics_step(self._critics_loss)
        self._add_step("state_critic", self._state_critic_loss)
        self._add_step("policy", self._policy_loss)

    @property
    def models(self) -> list[nn.Module]:
        """Every model whose weights an update changes."""
        return [*super().models, self._states.state_model]

    def update(self, batch: Transitions, rng: np.random.Generator, index: int) -> Metrics:
        """Take one step of both kinds of critics and, after ``policy_delay`` steps, of the policy; move the targets.

        The critics of actions take the values of states from before the update, the policy those after it, as in
        d3rlpy. No action of the policy is valued.

        Args:
            batch: Transitions.
            rng: Not used: an update draws nothing.
            index: Index of the update in the run, from 0.

        Raises:
            FloatingPointError: A gradient is NaN or inf; the weights of that model stay as they were.
        """
        with torch.no_grad():
            values = self._targets.evaluate_actions(batch.state, batch.action).amin(0)
        metrics = self._train_critics(batch)
        metrics |= self._steps["state_critic"].take(batch.state, values)[0]
        if self._updates_policy(index):
            metrics |= self._train_policy(batch.state, batch.action, values)
        self._move(self._targets.model, self._critics.model)
        return metrics

    def _critics_loss(self, batch: Transitions) -> tuple[torch.Tensor, Metrics]:
        with torch.no_grad():
            next_values = self._states.evaluate_states(batch.next_state)
            targets = batch.returns.to(next_values) + batch.discounts.to(next_values) * next_values
        values = self._critics.evaluate_actions(batch.state, batch.action)
        loss = squared_errors(values, targets)
        return loss, {"critic/loss": loss, "critic/value": values.mean()}

    def _state_critic_loss(self, state: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, Metrics]:
        loss = expectile_loss(values - self._states.evaluate_states(state), self._settings.expectile)
        return loss, {"critic/state_loss": loss}

    def _policy_loss(
        self, state: torch.Tensor, action: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, Metrics]:
        with torch.no_grad():
            advantages = values - self._states.evaluate_states(state)
        weights = advantage_weights(advantages, self._settings.inverse_temperature, self._settings.largest_weight)
        loss = -(weights * self._policy.log_density(state, action)).mean()
        return loss, {"policy/loss": loss, "policy/advantage_weight": weights.mean()}
