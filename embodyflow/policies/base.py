"""Protocols of policies and critics, as the rollout and trainer engines use them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from tensordict import TensorDict
from torch import nn


@dataclass(frozen=True)
class Decision:
    """Decisions for n environments.

    Attributes:
        tokens: Samples, ``[n, R]``: int64 action tokens with R = L, or the float32 samples of a Gaussian policy.
        log_probs: Log-probs of the samples under the sampling distribution, float32 ``[n, L]``.
        actions: Chunks of actions that the samples stand for, float32 ``[n, H, A]``. The first C are executed.
    """

    tokens: np.ndarray
    log_probs: np.ndarray
    actions: np.ndarray


@dataclass(frozen=True)
class NormalizationStatistics:
    """Statistics over the steps of a data set.

    Attributes:
        count: Number of steps.
        state_mean, state_std: Mean and standard deviation of the states, float64 ``[S]``.
        action_mean, action_std: Mean and standard deviation of the actions, float64 ``[A]``.
        state_q01, state_q99: 1% and 99% quantiles of the states, float64 ``[S]``; ``None`` if the policy needs none.
        action_q01, action_q99: Those of the actions, float64 ``[A]``.
    """

    count: int
    state_mean: torch.Tensor
    state_std: torch.Tensor
    action_mean: torch.Tensor
    action_std: torch.Tensor
    state_q01: torch.Tensor | None = None
    state_q99: torch.Tensor | None = None
    action_q01: torch.Tensor | None = None
    action_q99: torch.Tensor | None = None


class Policy(Protocol):
    """A policy to train.

    Attributes:
        model: Module to train; FSDP shards it in place.
    """

    model: nn.Module

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """Parts of the model that FSDP shards one by one, before the rest."""

    def evaluate(self, batch: TensorDict, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probs and entropy of a batch's tokens, float32 ``[N, T, L]``; zero outside its mask."""

    def export(self, weights: Mapping[str, np.ndarray], folder: Path) -> None:
        """Write a folder that the policy can be loaded from.

        Args:
            weights: Full weights by name.
            folder: Folder to write; it may not exist yet.
        """


class FeaturePolicy(Policy, Protocol):
    """A policy whose features a value head can read; its configuration says ``has_features``.

    Features depend on what is observed before a decision, and on nothing of the decision.

    Attributes:
        feature_size: F, number of features.
    """

    feature_size: int

    def features(self, batch: TensorDict) -> torch.Tensor:
        """Return the features of the D decisions of a batch, float ``[D, F]``; of one blank decision if D = 0."""

    def evaluate_with_features(
        self, batch: TensorDict, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the results of :meth:`evaluate` and of :meth:`features`, from one forward pass."""


class ActingPolicy(Policy, Protocol):
    """A policy that samples its decisions itself, in environments.

    Attributes:
        num_tokens: L, tokens of one decision, each with a log-prob, in the order of the chunk's actions.
        num_draws: R, random numbers that one decision takes and numbers that it records, in the order of its H actions.
        token_dtype: Dtype of the recorded numbers.
    """

    num_tokens: int
    num_draws: int
    token_dtype: np.dtype[Any]

    @property
    def horizon(self) -> int:
        """H, actions that a decision plans; the first C of them are executed, often all."""

    def encode_instruction(self, instruction: str) -> np.ndarray:
        """Return the instruction as int64 ``[I]``; 0 is padding."""

    def act(self, observation: dict[str, np.ndarray], uniforms: np.ndarray | None, temperature: float) -> Decision:
        """Decide for n environments.

        Args:
            observation: ``state`` float32 ``[n, S]``, ``instruction_ids`` int64 ``[n, I]`` and, for a policy that reads
                images, those of each camera, uint8 ``[n, H, W, 3]``.
            uniforms: Random numbers in [0, 1), float32 ``[n, R]``; ``None`` decides greedily.
            temperature: Temperature of the sampling distribution.
        """


StepDecisions: TypeAlias = Callable[[int, np.ndarray], Decision]
"""Function of a step t and the states before it, float32 ``[n, S]``, that decides for n environments."""


@runtime_checkable
class StepwisePolicy(Protocol):
    """A policy of states that computes once for many steps what depends on their random numbers alone."""

    def prepare_steps(self, uniforms: np.ndarray, temperature: float) -> StepDecisions:
        """Return a function that decides at step t as :meth:`ActingPolicy.act` does by ``uniforms[t]``, bit by bit.

        It holds for the weights that the policy has now.

        Args:
            uniforms: Random numbers in [0, 1), ``[T, n, R]``.
            temperature: Temperature of the sampling distribution.
        """


class OffPolicy(ActingPolicy, Protocol):
    """A policy that learns from replayed transitions.

    Its tokens are its actions, C·A numbers in [-1, 1], or R numbers in [-1, 1] from which its actions follow.
    """

    def sample(self, state: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return decisions, float32 ``[B, C·A]``, and their log-densities, ``[B]``, with gradients to the weights.

        Args:
            state: States, float32 ``[B, S]``.
            noise: Standard normals, float32 ``[B, C·A]``.
        """

    def log_density(self, state: torch.Tensor, decisions: torch.Tensor) -> torch.Tensor:
        """Return the log-densities ``[B]`` of demonstrated decisions ``[B, C·A]``, which may be clipped a little."""


class ImageOffPolicy(OffPolicy, Protocol):
    """A policy that learns from replayed transitions with images.

    :meth:`OffPolicy.sample` and :meth:`OffPolicy.log_density`, like its critics, take features in place of states.
    """

    def encode(self, state: torch.Tensor, images: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return features, float32 ``[B, F]``, with gradients to the weights.

        Args:
            state: States, float32 ``[B, S]``.
            images: Images by camera, uint8 ``[B, H, W, 3]``.
        """


class DeterministicPolicy(ActingPolicy, Protocol):
    """A policy that learns from replayed transitions, and whose noise is no part of it. Its actions lie in [-1, 1]."""

    def decide(self, state: torch.Tensor) -> torch.Tensor:
        """Return actions without noise, float32 ``[B, A]``, of states ``[B, S]``, with gradients to the weights."""


class DensityPolicy(ActingPolicy, Protocol):
    """A policy that learns from actions of a data set by their densities. Its actions lie in [-1, 1]."""

    def log_density(self, state: torch.Tensor, decisions: torch.Tensor) -> torch.Tensor:
        """Return log-densities ``[B]`` of decisions ``[B, C·A]`` in states ``[B, S]``, with gradients to weights."""


class ImitatingPolicy(ActingPolicy, Protocol):
    """A policy that also learns from demonstrations.

    Attributes:
        num_imitation_draws: Random numbers that the loss of one sample takes.
    """

    num_imitation_draws: int

    def set_normalization(self, states: torch.Tensor, actions: torch.Tensor) -> None:
        """Standardise by the mean and deviation of demonstrations.

        Args:
            states: Demonstrated states, float32 ``[n, S]``.
            actions: Demonstrated actions, float32 ``[n, A]``.
        """

    def load_normalization(self, statistics: NormalizationStatistics) -> None:
        """Standardise by the statistics of a data set, in place of those of the demonstrations chosen from it."""

    def imitation_loss(
        self,
        observation: dict[str, torch.Tensor],
        actions: torch.Tensor,
        mask: torch.Tensor,
        sigma: float,
        uniforms: torch.Tensor,
    ) -> torch.Tensor:
        """Return the cross-entropy to smoothed expert actions, summed over the tokens inside the mask.

        A policy without tokens returns its own imitation loss, summed likewise.

        Args:
            observation: n observations.
            actions: Expert actions, float32 ``[n, H, A]``.
            mask: Actions that count, bool ``[n, H]``; false after the end of a demonstration.
            sigma: Standard deviation of the smoothing, in bins.
            uniforms: Random numbers in [0, 1), float32 ``[n, num_imitation_draws]``.
        """


class MemberPolicy(ImitatingPolicy, Protocol):
    """A policy that plays several kinds of environments, the members of ``env.members``."""

    def set_member_normalization(self, states: torch.Tensor, members: torch.Tensor) -> None:
        """Standardise the states of each member by the mean and deviation of its own demonstrations.

        Args:
            states: Demonstrated states, padded with zeros to one size, float32 ``[n, S]``.
            members: Index of each state's member, int64 ``[n]``.
        """


class Critic(Protocol):
    """A policy's critic: it estimates the return from before each decision on.

    Attributes:
        model: Module to train; FSDP shards it in place.
    """

    model: nn.Module

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """Parts of the model that FSDP shards one by one, before the rest."""

    def evaluate(self, batch: TensorDict) -> torch.Tensor:
        """Return the value before each decision of a batch, float32 ``[N, T]``; zero without a decision."""

    def start_from(self, policy_state: Mapping[str, Any]) -> None:
        """Take over the weights that critic and policy share.

        Args:
            policy_state: State dict of the policy's model, sharded like the critic's.
        """


class ActionCritics(Protocol):
    """Several critics of states and actions, for a policy that learns from replayed transitions.

    Attributes:
        model: Module to train.
        num_members: K, number of critics.
    """

    model: nn.Module
    num_members: int

    def evaluate_actions(
        self, state: torch.Tensor, action: torch.Tensor, members: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the value of each action by each critic, float32 ``[K, B]``.

        Args:
            state: States, float32 ``[B, S]``.
            action: Actions in [-1, 1], float32 ``[B, A]``; decisions of C·A numbers if the policy has chunks.
            members: Indices of the critics to ask, int64 ``[K]``; ``None`` asks all.
        """

    def start_from(self, policy_state: Mapping[str, Any]) -> None:
        """Take over what critics and policy share, such as the statistics of states.

        Args:
            policy_state: State dict of the policy's model.
        """


class ActionAndStateCritics(ActionCritics, Protocol):
    """Critics of states and actions, and one of states alone.

    Attributes:
        state_model: Module of the critic of states to train.
    """

    state_model: nn.Module

    def evaluate_states(self, state: torch.Tensor) -> torch.Tensor:
        """Return the values, float32 ``[B]``, of states float32 ``[B, S]``."""
