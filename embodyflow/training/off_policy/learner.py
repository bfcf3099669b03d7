"""What off-policy learners share: a policy, critics, in most of them target critics, and their optimizers."""

import copy
from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict

from embodyflow.config.robots.control import ControlConfig
from embodyflow.config.robots.embodied import EmbodiedConfig
from embodyflow.config.robots.off_policy import TargetsConfig
from embodyflow.policies.base import ActingPolicy, ActionCritics
from embodyflow.training.off_policy.replay.replay_buffer import Transitions
from embodyflow.training.parallel.sharding import clip_gradients
from embodyflow.training.trained_model import TrainedModel

Metrics = dict[str, torch.Tensor]
PolicyT = TypeVar("PolicyT", bound=ActingPolicy)
"""The kind of policy that a learner trains."""

OffPolicyRun = ControlConfig | EmbodiedConfig
"""Configurations of runs that may train off-policy."""


class OffPolicyLearner(Protocol):
    """The models of an off-policy algorithm, built as ``Class(policy, critics, run_config)``."""

    @property
    def models(self) -> list[nn.Module]:
        """Every model whose weights an update changes."""

    def restart(self) -> None:
        """Reset the optimizers, and make the critics their own targets where there are target critics."""

    def set_rate(self, rate: float) -> None:
        """Train at this fraction of the full learning rates from now on."""

    def update(self, batch: Transitions, rng: np.random.Generator, index: int) -> Metrics:
        """Take one update; return metrics as scalars.

        Args:
            batch: Transitions.
            rng: Source of the update's draws.
            index: Index of the update in the run, from 0.

        Raises:
            FloatingPointError: A gradient is NaN or inf; the weights of that model stay as they were.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return all weights and moments in the form that torch.distributed.checkpoint writes and reads in place."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load weights and moments that :meth:`state_dict` returned."""


class PolicyAndCritics(Generic[PolicyT]):
    """Base of learners: policy and critics with their optimizers.

    Args:
        policy: Policy in training.
        critics: Its critics.
        config: Run configuration.
        betas: Decay rates of the two moments of both optimizers.

    Attributes:
        trained: Models with an optimizer, by name.
    """

    def __init__(
        self,
        policy: PolicyT,
        critics: ActionCritics,
        config: OffPolicyRun,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        assert config.off_policy is not None
        self._policy, self._critics = policy, critics
        self._decision_dim, self._max_grad_norm = config.policy.decision_dim, config.trainer.max_grad_norm
        self._policy_delay, self._critic_updates = config.off_policy.policy_delay, config.off_policy.critic_updates
        self.trained = {
            "policy": TrainedModel(policy.model, config.trainer.learning_rate, config.trainer, betas),
            "critics": TrainedModel(critics.model, config.critic.learning_rate, config.trainer, betas),
        }

    @property
    def models(self) -> list[nn.Module]:
        """Every model whose weights an update changes."""
        return [self._policy.model, self._critics.model]

    def restart(self) -> None:
        """Reset the optimizers."""
        self._critics.start_from(self._policy.model.state_dict())
        for each in self.trained.values():
            each.restart()

    def set_rate(self, rate: float) -> None:
        """Train at this fraction of the full learning rates from now on."""
        for each in self.trained.values():
            each.set_rate(rate)

    def _updates_policy(self, index: int) -> bool:
        """Return True if the update with this index also updates the policy."""
        return index >= self._critic_updates and (index + 1) % self._policy_delay == 0

    def _values_for_policy(
        self, state: torch.Tensor, actions: torch.Tensor, members: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the values of actions by each critic, or by ``members``; gradients pass to the actions alone."""
        self._critics.model.requires_grad_(False)
        values = self._critics.evaluate_actions(state, actions, members)
        self._critics.model.requires_grad_(True)
        return values

    def _step(self, name: str, loss: torch.Tensor) -> torch.Tensor:
        """Take an optimizer step of one model; return the norm of its gradient before clipping."""
        trained = self.trained[name]
        trained.optimizer.zero_grad()
        loss.backward()
        norm = clip_gradients(trained.parameters, self._max_grad_norm)
        trained.step()
        return torch.tensor(norm)

    def _train_critics(self, values: torch.Tensor, loss: torch.Tensor) -> Metrics:
        """Take an optimizer step of the critics, by the loss of their values; return its metrics."""
        norm = self._step("critics", loss)
        return {"critic/loss": loss.detach(), "critic/value": values.detach().mean(), "critic/grad_norm": norm}

    def state_dict(self) -> dict[str, Any]:
        """Return all weights and moments in the form that torch.distributed.checkpoint writes and reads in place."""
        return {name: each.state_dict() for name, each in self.trained.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load weights and moments that :meth:`state_dict` returned."""
        for name, each in self.trained.items():
            each.load_state_dict(state[name])


class CriticsWithTargets(PolicyAndCritics[PolicyT]):
    """Base of learners with target critics, which follow the critics.

    Args:
        policy: Policy in training.
        critics: Its critics; a copy of them becomes the target.
        config: Run configuration.
    """

    def __init__(self, policy: PolicyT, critics: ActionCritics, config: OffPolicyRun) -> None:
        super().__init__(policy, critics, config)
        assert isinstance(config.off_policy, TargetsConfig)
        self._target_rate, self._targets = config.off_policy.target_rate, copy.deepcopy(critics)
        self._targets.model.requires_grad_(False)

    @property
    def models(self) -> list[nn.Module]:
        """Every model whose weights an update changes."""
        return [*super().models, self._targets.model]

    def restart(self) -> None:
        """Reset the optimizers, and make the critics their own targets."""
        super().restart()
        self._targets.model.load_state_dict(self._critics.model.state_dict())

    def _move(self, targets: nn.Module, source: nn.Module) -> None:
        """Move a share of a model's weights into its targets (Polyak averaging)."""
        into: list[torch.Tensor] = [*targets.parameters()]
        torch._foreach_lerp_(into, [each.detach() for each in source.parameters()], self._target_rate)

    def state_dict(self) -> dict[str, Any]:
        """Return all weights and moments in the form that torch.distributed.checkpoint writes and reads in place."""
        states = super().state_dict()
        states["critics"]["targets"] = get_model_state_dict(self._targets.model)
        return states

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load weights and moments that :meth:`state_dict` returned."""
        super().load_state_dict(state)
        self._targets.model.load_state_dict(state["critics"]["targets"])
