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
from embodyflow.training.off_policy.gradient_step import GradientStep, Loss, Metrics
from embodyflow.training.off_policy.replay.replay_buffer import Transitions
from embodyflow.training.trained_model import TrainedModel

ERRORS = "errors"
"""Name of the critics' mean absolute errors of each transition, among the metrics of an update."""

FEATURES = "features"
"""Name of the features that critics and policy take in place of states, ``[B, F]``, among the metrics of a step."""

PolicyT = TypeVar("PolicyT", bound=ActingPolicy)
"""The kind of policy that a learner trains."""

OffPolicyRun = ControlConfig | EmbodiedConfig
"""Configurations of runs that may train off-policy."""


class OffPolicyLearner(Protocol):
    """The models of an off-policy algorithm, built as ``Class(policy, critics, run_config)``."""

    @property
    def models(self) -> list[nn.Module]:
        """Every model whose weights an update changes."""

    @property
    def compile_seconds(self) -> float:
        """Seconds that compiling has taken so far, including loading from the cache."""

    def restart(self) -> None:
        """Reset the optimizers, and make the critics their own targets where there are target critics."""

    def set_rate(self, rate: float) -> None:
        """Train at this fraction of the full learning rates from now on."""

    def update(self, batch: Transitions, rng: np.random.Generator, index: int) -> Metrics:
        """Take one update; return metrics as scalars and, of a weighted batch, :data:`ERRORS`, ``[B]``.

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
        self._decision_dim, self._trainer_config = config.policy.decision_dim, config.trainer
        self._steps: dict[str, GradientStep] = {}
        self._is_weighted = config.off_policy.prioritized is not None
        self._policy_delay, self._critic_updates = config.off_policy.policy_delay, config.off_policy.critic_updates
        self.trained = {
            "policy": TrainedModel(policy.model, config.trainer.learning_rate, config.trainer, betas),
            "critics": TrainedModel(critics.model, config.critic.learning_rate, config.trainer, betas),
        }

    @property
    def models(self) -> list[nn.Module]:
        """Every model whose weights an update changes."""
        return [self._policy.model, self._critics.model]

    @property
    def compile_seconds(self) -> float:
        """Seconds that compiling has taken so far, including loading from the cache."""
        return sum(step.compile_seconds for step in self._steps.values())

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

    def _add_step(self, name: str, loss: Loss, *others: str) -> None:
        """Add the optimizer step of the model with this name, and of others, on the sum of their losses."""
        self._steps[name] = GradientStep([self.trained[each] for each in (name, *others)], loss, self._trainer_config)

    def _add_critics_step(self, loss: Loss) -> None:
        """Add the optimizer step of the critics, by a loss of transitions and of further tensors."""

        def of_tensors(*columns: torch.Tensor) -> tuple[torch.Tensor, Metrics]:
            state, action, returns, discounts, next_state, *further = columns
            weights = further.pop(0) if self._is_weighted else None
            return loss(Transitions(state, action, returns, discounts, next_state, weights=weights), *further)

        self._add_step("critics", of_tensors)

    def _metrics_of(
        self, batch: Transitions, loss: torch.Tensor, values: torch.Tensor, targets: torch.Tensor
    ) -> Metrics:
        """Return the metrics of the critics' loss, given values ``[K, B]`` and targets ``[B]``."""
        metrics = {"critic/loss": loss, "critic/value": values.mean()}
        return metrics if batch.weights is None else metrics | {ERRORS: (values - targets).abs().mean(0)}

    def _train_critics(self, batch: Transitions, *further: torch.Tensor) -> Metrics:
        """Take an optimizer step of the critics on a batch and what else their loss takes; return its metrics."""
        weights = () if batch.weights is None else (batch.weights,)
        metrics, (norm,) = self._steps["critics"].take(*batch.tensors, *weights, *further)
        return {**metrics, "critic/grad_norm": norm}

    def _train_policy(self, *columns: torch.Tensor) -> Metrics:
        """Take an optimizer step of the policy, and of what trains with it, on a batch; return its metrics."""
        metrics, (norm, *_) = self._steps["policy"].take(*columns)
        return {**metrics, "train/grad_norm": norm}

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
