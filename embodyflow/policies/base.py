"""What every policy offers the rollout and trainer engines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from tensordict import TensorDict
from torch import nn


@dataclass(frozen=True)
class Decision:
    """What a policy decided for n environments.

    Attributes:
        tokens: ``[n, R]``, what was drawn: int64 action tokens, with R = L; of a Gaussian policy its samples, float32.
        log_probs: float32 ``[n, L]``, of what was drawn under the sampling distribution.
        actions: float32 ``[n, C, A]``, the chunk of actions they stand for.
    """

    tokens: np.ndarray
    log_probs: np.ndarray
    actions: np.ndarray


class Policy(Protocol):
    """A policy that is trained.

    Attributes:
        model: the module that is trained; FSDP shards it in place.
    """

    model: nn.Module

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """The parts of the model that are sharded one by one, before the rest."""

    def evaluate(self, batch: TensorDict, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probs and entropy of a batch's tokens, float32 ``[N, T, L]``; zero outside its mask."""

    def export(self, weights: Mapping[str, np.ndarray], folder: Path) -> None:
        """Write a folder that the policy's class can be loaded from, with these full weights by name."""


class ActingPolicy(Policy, Protocol):
    """A policy that samples its decisions itself, in environments.

    Attributes:
        num_tokens: L, tokens of one decision, each with a log-prob, in the order of the chunk's actions.
        num_draws: R, random numbers of one decision, in the order of its H actions, and numbers that are recorded.
        token_dtype: of those that are recorded.
    """

    num_tokens: int
    num_draws: int
    token_dtype: np.dtype[Any]

    @property
    def horizon(self) -> int:
        """H, actions that a decision plans, of which the first C are executed; C of a policy that plans no further."""

    def encode_instruction(self, instruction: str) -> np.ndarray:
        """Return the instruction as int64 ``[I]``; 0 is padding."""

    def act(self, observation: dict[str, np.ndarray], uniforms: np.ndarray | None, temperature: float) -> Decision:
        """Decide for n environments.

        Args:
            observation: ``state`` float32 ``[n, S]``, ``instruction_ids`` int64 ``[n, I]`` and, where the policy looks
                at images, each of its cameras' uint8 ``[n, H, W, 3]``.
            uniforms: float32 ``[n, R]`` in [0, 1), the randomness that is decided with; ``None`` is greedy.
            temperature: of the sampling distribution.
        """


class ImitatingPolicy(ActingPolicy, Protocol):
    """A policy that also learns from demonstrations.

    Attributes:
        num_imitation_draws: random numbers that the loss of one sample takes.
    """

    num_imitation_draws: int

    def set_normalization(self, states: torch.Tensor, actions: torch.Tensor) -> None:
        """Standardise by the mean and deviation of these, float32 ``[n, S]`` and ``[n, A]``."""

    def imitation_loss(
        self,
        observation: dict[str, torch.Tensor],
        actions: torch.Tensor,
        mask: torch.Tensor,
        sigma: float,
        uniforms: torch.Tensor,
    ) -> torch.Tensor:
        """Return the cross-entropy to smoothed expert actions, summed over the tokens inside the mask.

        Of a policy without tokens it is what stands in its place.

        Args:
            observation: n observations.
            actions: float32 ``[n, H, A]``.
            mask: bool ``[n, H]``, false for actions after the end of a demonstration.
            sigma: deviation of the smoothing, in bins.
            uniforms: float32 ``[n, num_imitation_draws]`` in [0, 1).
        """


class Critic(Protocol):
    """A policy's critic: what it estimates is the return from before each decision on.

    Attributes:
        model: the module that is trained; FSDP shards it in place.
    """

    model: nn.Module

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """The parts of the model that are sharded one by one, before the rest."""

    def evaluate(self, batch: TensorDict) -> torch.Tensor:
        """Return the value before each decision of a batch, float32 ``[N, T]``; zero where none was taken."""

    def start_from(self, policy_state: Mapping[str, Any]) -> None:
        """Take over what critic and policy have in common.

        Args:
            policy_state: of the policy's model, sharded as the critic's own.
        """
