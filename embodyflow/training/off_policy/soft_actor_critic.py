"""Soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905): the models in training, and one update of them all."""

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from embodyflow.algorithms.off_policy import POOLS, actor_loss, critic_loss, soft_targets
from embodyflow.config.robots.off_policy import MaximumEntropyConfig, SoftActorCriticConfig
from embodyflow.policies.base import ActionCritics, OffPolicy
from embodyflow.training.off_policy.gradient_step import Metrics
from embodyflow.training.off_policy.learner import FEATURES, CriticsWithTargets, OffPolicyRun
from embodyflow.training.off_policy.replay.replay_buffer import Transitions
from embodyflow.training.off_policy.temperature import Temperature
from embodyflow.training.trained_model import TrainedModel


class MaximumEntropyLearner(CriticsWithTargets[OffPolicy]):
    """Policy, critics, target critics and temperature with their optimizers.

    Args:
        policy: Policy in training.
        critics: Its critics; a copy of them becomes the target.
        config: Run configuration.
    """

    def __init__(self, policy: OffPolicy, critics: ActionCritics, config: OffPolicyRun) -> None:
        super().__init__(policy, critics, config)
        assert isinstance(config.off_policy, MaximumEntropyConfig)
        self._settings = config.off_policy
        self._pool, temperature = POOLS[self._settings.policy_value], self._settings.temperature
        self._temperature = Temperature(temperature, self._decision_dim).to(config.cluster.device)
        self.trained["temperature"] = TrainedModel(self._temperature, temperature.learning_rate, config.trainer)
        self._add_critics_step(self._critics_loss)
        self._add_step("policy", self._policy_loss, "temperature")

    @property
    def models(self) -> list[nn.Module]:
        """Every model whose weights an update changes."""
        return [*super().models, self._temperature]

    def update(self, batch: Transitions, rng: np.random.Generator, index: int) -> Metrics:
        """Take one step of critics and target critics and, after ``policy_delay`` steps, of temperature and policy.

        Temperature and policy are those of before the update in every loss; the policy's loss has the updated critics.

        Args:
            batch: Transitions.
            rng: Source of the noise of actions, and of the target critics that count.
            index: Index of the update in the run, from 0.

        Raises:
            FloatingPointError: A gradient is NaN or inf; the weights of that model stay as they were.
        """
        # Noise of the actions in the states, and in the next states.
        noise = torch.from_numpy(rng.standard_normal((2, len(batch.returns), self._decision_dim), np.float32))
        metrics = self._train_critics(batch, noise[1], *self._target_members(rng))
        batch = replace(batch, state=metrics.pop(FEATURES, batch.state))
        if self._updates_policy(index):
            metrics |= self._train_policy(batch.state, noise[0], *self._demonstrated(batch))
        self._move(self._targets.model, self._critics.model)
        return metrics

    def _target_members(self, rng: np.random.Generator) -> tuple[torch.Tensor, ...]:
        """Draw the target critics that count in this update, int64 ``[num_target_critics]``; nothing means all."""
        size = self._settings.num_target_critics
        if size is None:
            return ()
        return (torch.from_numpy(np.sort(rng.permutation(self._critics.num_members)[:size])),)

    def _demonstrated(self, batch: Transitions) -> tuple[torch.Tensor, ...]:
        """Return the columns of demonstrated transitions that the policy's loss reads."""
        del batch
        return ()

    def _critics_loss(
        self, batch: Transitions, noise: torch.Tensor, members: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, Metrics]:
        with torch.no_grad():
            temperature = self._temperature.value
            next_actions, next_log_probs = self._policy.sample(batch.next_state, noise)
            next_values = self._targets.evaluate_actions(batch.next_state, next_actions, members)
            returns, discounts = batch.returns.to(next_values.device), batch.discounts.to(next_values.device)
            cost = temperature if self._settings.entropy_backup else torch.zeros_like(temperature)
            targets = soft_targets(returns, discounts, next_values, next_log_probs, cost)
        values = self._critics.evaluate_actions(batch.state, batch.action)
        weights = None if batch.weights is None else batch.weights.to(values.device)
        loss = critic_loss(values, targets, weights)
        return loss, self._metrics_of(batch, loss, values, targets)

    def _policy_loss(
        self, state: torch.Tensor, noise: torch.Tensor, *demonstrated: torch.Tensor
    ) -> tuple[torch.Tensor, Metrics]:
        """Return the losses of policy and temperature, and the policy's as a metric."""
        temperature = self._temperature.value
        actions, log_probs = self._policy.sample(state, noise)
        values = self._pool(self._critics.evaluate_actions(state, actions))
        loss = actor_loss(log_probs, values, temperature) + self._imitation_loss(*demonstrated)
        metrics = {"policy/loss": loss, "policy/temperature": temperature, "policy/entropy": -log_probs.mean()}
        return loss + self._temperature.loss(log_probs.detach()), metrics

    def _imitation_loss(self, *demonstrated: torch.Tensor) -> torch.Tensor | float:
        """Return a part of the policy's loss, a scalar, by the columns of demonstrated transitions."""
        del demonstrated
        return 0.0


class SoftActorCritic(MaximumEntropyLearner):
    """Soft actor-critic that may imitate the demonstrated transitions of a batch besides.

    Args:
        policy: Policy in training.
        critics: Its critics; a copy of them becomes the target.
        config: Run configuration.
    """

    def __init__(self, policy: OffPolicy, critics: ActionCritics, config: OffPolicyRun) -> None:
        super().__init__(policy, critics, config)
        assert isinstance(config.off_policy, SoftActorCriticConfig)
        self._imitation_coef = config.off_policy.imitation_coef

    def _demonstrated(self, batch: Transitions) -> tuple[torch.Tensor, ...]:
        if not (self._imitation_coef and batch.num_demonstrated):
            return ()
        return batch.state[-batch.num_demonstrated :], batch.action[-batch.num_demonstrated :]

    def _imitation_loss(self, *demonstrated: torch.Tensor) -> torch.Tensor | float:
        if not demonstrated:
            return 0.0
        state, action = demonstrated
        return -self._imitation_coef * self._policy.log_density(state, action).mean()
