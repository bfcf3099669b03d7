"""CrossQ (Bhatt et al. 2024, arXiv:1902.05605): the models in training, and one update of them all."""

import numpy as np
import torch
from torch import nn

from embodyflow.algorithms.off_policy import actor_loss, critic_loss, soft_targets
from embodyflow.config.robots.off_policy import CrossQConfig
from embodyflow.policies.base import ActionCritics, OffPolicy
from embodyflow.policies.control.mlp_renorm.batch_renorm import batch_statistics
from embodyflow.training.off_policy.gradient_step import Metrics
from embodyflow.training.off_policy.learner import OffPolicyRun, PolicyAndCritics
from embodyflow.training.off_policy.replay.replay_buffer import Transitions
from embodyflow.training.off_policy.temperature import Temperature
from embodyflow.training.trained_model import TrainedModel


class CrossQ(PolicyAndCritics[OffPolicy]):
    """Policy, critics without targets, and temperature with their optimizers.

    Policy and critics have batch renormalisation. They are in evaluation mode but in the passes that train them: the
    critics' over both halves of the transitions, and the policy's over the states of its own loss.

    Args:
        policy: Policy in training.
        critics: Its critics.
        config: Run configuration.
    """

    def __init__(self, policy: OffPolicy, critics: ActionCritics, config: OffPolicyRun) -> None:
        assert isinstance(config.off_policy, CrossQConfig)
        super().__init__(policy, critics, config, betas=(config.off_policy.adam_beta1, 0.999))
        temperature = config.off_policy.temperature
        self._temperature = Temperature(temperature, self._decision_dim).to(config.cluster.device)
        self.trained["temperature"] = TrainedModel(self._temperature, temperature.learning_rate, config.trainer)
        self._add_critics_step(self._critics_loss)
        self._add_step("policy", self._policy_loss, "temperature")

    @property
    def models(self) -> list[nn.Module]:
        """Every model whose weights an update changes."""
        return [*super().models, self._temperature]

    def update(self, batch: Transitions, rng: np.random.Generator, index: int) -> Metrics:
        """Take one step of the critics and, after ``policy_delay`` steps, of temperature and policy.

        The temperature is that of before the update in every loss; the policy's loss has the updated critics.

        Args:
            batch: Transitions.
            rng: Source of the noise of actions.
            index: Index of the update in the run, from 0.

        Raises:
            FloatingPointError: A gradient is NaN or inf; the parameters of that model stay as they were.
        """
        # Noise of the actions in the states, and in the next states.
        noise = torch.from_numpy(rng.standard_normal((2, len(batch.returns), self._decision_dim), np.float32))
        metrics = self._train_critics(batch, noise[1])
        if self._updates_policy(index):
            metrics |= self._train_policy(batch.state, noise[0])
        return metrics

    def _critics_loss(self, batch: Transitions, noise: torch.Tensor) -> tuple[torch.Tensor, Metrics]:
        with torch.no_grad():
            next_actions, next_log_probs = self._policy.sample(batch.next_state, noise)
        # One pass over both halves: the policy's actions differ from those replayed, so statistics of one half would
        # not fit the other.
        states = torch.cat([batch.state, batch.next_state])
        actions = torch.cat([batch.action.to(next_actions), next_actions])
        with batch_statistics(self._critics.model):
            values, next_values = self._critics.evaluate_actions(states, actions).chunk(2, 1)
        returns, discounts = batch.returns.to(values.device), batch.discounts.to(values.device)
        targets = soft_targets(returns, discounts, next_values.detach(), next_log_probs, self._temperature.value)
        weights = None if batch.weights is None else batch.weights.to(values.device)
        loss = critic_loss(values, targets, weights)
        return loss, self._metrics_of(batch, loss, values, targets)

    def _policy_loss(self, state: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, Metrics]:
        """Return the losses of policy and temperature, and the policy's as a metric."""
        temperature = self._temperature.value
        with batch_statistics(self._policy.model):
            actions, log_probs = self._policy.sample(state, noise)
        loss = actor_loss(log_probs, self._critics.evaluate_actions(state, actions).amin(0), temperature)
        metrics = {"policy/loss": loss, "policy/temperature": temperature, "policy/entropy": -log_probs.mean()}
        return loss + self._temperature.loss(log_probs.detach()), metrics
