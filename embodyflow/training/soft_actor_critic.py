"""Soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905): the models in training, and one update of them all."""

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict

from embodyflow.algorithms.off_policy import actor_loss, critic_loss, soft_targets, temperature_loss
from embodyflow.config.control import ControlConfig
from embodyflow.policies.base import ActionCritics, OffPolicy
from embodyflow.training.replay.replay_buffer import Transitions
from embodyflow.training.sharding import clip_gradients
from embodyflow.training.trained_model import TrainedModel

Metrics = dict[str, torch.Tensor]


class Temperature(nn.Module):
    """The coefficient α of the entropy, by its logarithm."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(initial)))


class SoftActorCritic:
    """Policy, critics, target critics and temperature with their optimizers.

    Args:
        policy: Policy in training.
        critics: Its critics; a copy of them becomes the target.
        config: Run configuration.
    """

    def __init__(self, policy: OffPolicy, critics: ActionCritics, config: ControlConfig) -> None:
        assert config.off_policy is not None
        self._policy, self._critics, self._targets = policy, critics, copy.deepcopy(critics)
        self._targets.model.requires_grad_(False)
        self._settings, self._max_grad_norm = config.off_policy, config.trainer.max_grad_norm
        temperature = self._settings.temperature
        self._temperature = Temperature(temperature.initial).to(config.cluster.device)
        default, wanted = -float(config.policy.action_dim), temperature.target_entropy
        self._target_entropy = default if wanted is None else wanted
        self.trained = {
            "policy": TrainedModel(policy.model, config.trainer.learning_rate, config.trainer),
            "critics": TrainedModel(critics.model, config.critic.learning_rate, config.trainer),
            "temperature": TrainedModel(self._temperature, temperature.learning_rate, config.trainer),
        }

    @property
    def models(self) -> list[nn.Module]:
        """Every model whose weights an update changes."""
        return [self._policy.model, self._critics.model, self._targets.model, self._temperature]

    def restart(self) -> None:
        """Reset the optimizers, and make the critics their own targets."""
        self._targets.model.load_state_dict(self._critics.model.state_dict())
        for each in self.trained.values():
            each.restart()

    def set_rate(self, rate: float) -> None:
        """Train at this fraction of the full learning rates from now on."""
        for each in self.trained.values():
            each.set_rate(rate)

    def update(self, batch: Transitions, noise: torch.Tensor) -> Metrics:
        """Take one step of temperature, critics, policy and target critics; return metrics as scalars.

        Temperature and policy are those of before the update in every loss; the policy's loss has the updated critics.

        Args:
            batch: Transitions.
            noise: Standard normals, float32 ``[2, B, A]``: of the actions in the states, and in the next states.

        Raises:
            FloatingPointError: A gradient is NaN or inf; the weights of that model stay as they were.
        """
        temperature = self._temperature.log.detach().exp()
        actions, log_probs = self._policy.sample(batch.state, noise[0])
        self._step_temperature(log_probs.detach())
        metrics = self._step_critics(batch, noise[1], temperature)
        metrics |= self._step_policy(batch.state, actions, log_probs, temperature)
        self._move_targets()
        return metrics | {"policy/temperature": temperature, "policy/entropy": -log_probs.detach().mean()}

    def _step_temperature(self, log_probs: torch.Tensor) -> None:
        self._step("temperature", temperature_loss(self._temperature.log, log_probs, self._target_entropy))

    def _step_critics(self, batch: Transitions, noise: torch.Tensor, temperature: torch.Tensor) -> Metrics:
        with torch.no_grad():
            next_actions, next_log_probs = self._policy.sample(batch.next_state, noise)
            next_values = self._targets.evaluate_actions(batch.next_state, next_actions)
            returns, discounts = batch.returns.to(next_values.device), batch.discounts.to(next_values.device)
            targets = soft_targets(returns, discounts, next_values, next_log_probs, temperature)
        values = self._critics.evaluate_actions(batch.state, batch.action)
        loss = critic_loss(values, targets)
        norm = self._step("critics", loss)
        return {"critic/loss": loss.detach(), "critic/value": values.detach().mean(), "critic/grad_norm": norm}

    def _step_policy(
        self, state: torch.Tensor, actions: torch.Tensor, log_probs: torch.Tensor, temperature: torch.Tensor
    ) -> Metrics:
        self._critics.model.requires_grad_(False)  # gradients pass through the critics to the actions alone
        loss = actor_loss(log_probs, self._critics.evaluate_actions(state, actions), temperature)
        norm = self._step("policy", loss)
        self._critics.model.requires_grad_(True)
        return {"policy/loss": loss.detach(), "train/grad_norm": norm}

    def _step(self, name: str, loss: torch.Tensor) -> torch.Tensor:
        """Take an optimizer step of one model; return the norm of its gradient before clipping."""
        trained = self.trained[name]
        trained.optimizer.zero_grad()
        loss.backward()
        norm = clip_gradients(trained.parameters, self._max_grad_norm)
        trained.optimizer.step()
        return torch.tensor(norm)

    def _move_targets(self) -> None:
        """Move a share of the critics' weights into the target critics (Polyak averaging)."""
        targets: list[torch.Tensor] = [*self._targets.model.parameters()]
        sources = [each.detach() for each in self._critics.model.parameters()]
        torch._foreach_lerp_(targets, sources, self._settings.target_rate)

    def state_dict(self) -> dict[str, Any]:
        """Return all weights and moments in the form that torch.distributed.checkpoint writes and reads in place."""
        states: dict[str, Any] = {name: each.state_dict() for name, each in self.trained.items()}
        states["critics"]["targets"] = get_model_state_dict(self._targets.model)
        return states

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load weights and moments that :meth:`state_dict` returned."""
        for name, each in self.trained.items():
            each.load_state_dict(state[name])
        self._targets.model.load_state_dict(state["critics"]["targets"])
