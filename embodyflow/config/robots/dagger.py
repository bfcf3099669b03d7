"""The configuration of DAgger: imitation of an expert in the states that the policy visits."""

from collections.abc import Callable
from typing import Annotated, TypeAlias

import numpy as np
from pydantic import Field

from embodyflow.algorithms.algorithm_config import AlgorithmConfig
from embodyflow.config.base import Config, Fraction, FunctionName, PositiveInt
from embodyflow.config.robots.unread_keys import refuse_unread
from embodyflow.config.trainer import TrainerConfig

Observation: TypeAlias = dict[str, np.ndarray]
"""Entries of one observation by name."""

Gate: TypeAlias = Callable[[Observation, np.ndarray, np.ndarray], bool]
"""Function ``(observation, policy_action, expert_action) -> bool`` that decides whether the expert takes over a step.
Both actions are float ``[A]``, as the environment would execute them."""

READ_OF_TRAINER = frozenset(
    {
        *("learning_rate", "schedule", "schedule_iterations", "precision", "activation_checkpointing"),
        *("parity_tolerance", "keep_checkpoints", "iterations_per_commit", "profile"),
    }
)
"""Keys of the section ``trainer`` that have a meaning with DAgger."""


class DaggerConfig(Config):
    """DAgger (Ross et al. 2011, arXiv:1011.0686): the expert labels the states that the policy visits.

    Batch size and smoothing of a fit are those of ``warm_start``, whose demonstrations begin the data. Its learning
    rate is that of ``trainer``.

    Attributes:
        steps: Optimizer steps of an iteration on the data of all iterations.
        beta: Base of the probability that the expert executes a decision: ``beta ** i`` in iteration i, from 1. 0
            leaves all decisions to the policy; the demonstrations are those of iteration 0.
        gate: Function ``module:function`` that lets the expert take over single steps, which alone are labelled then
            (HG-DAgger, Kelly et al. 2019, arXiv:1810.02890); ``null`` labels every step. Its type is :data:`Gate`.
    """

    steps: PositiveInt
    beta: Annotated[Fraction, Field(lt=1)] = 0.0
    gate: FunctionName | None = None

    def expert_share(self, iteration: int) -> float:
        """Return the probability that the expert executes a decision of an iteration, from 1."""
        return float(self.beta**iteration)


def check_dagger(settings: DaggerConfig, algorithm: AlgorithmConfig, trainer: TrainerConfig) -> None:
    """Refuse settings that have no meaning with DAgger.

    Args:
        settings: Settings of DAgger.
        algorithm: Settings of the section ``algorithm``.
        trainer: Settings of the section ``trainer``.

    Raises:
        ValueError: One line with the key and what is allowed.
    """
    if settings.gate is not None and settings.beta:
        raise ValueError(f"dagger.beta={settings.beta:g}: must be 0 with dagger.gate, which decides who acts")
    refuse_unread("algorithm", algorithm, AlgorithmConfig(), frozenset(), "dagger")
    defaults = TrainerConfig(learning_rate=trainer.learning_rate, epochs=1, num_ranks=1, num_minibatches=1)
    refuse_unread("trainer", trainer, defaults, READ_OF_TRAINER, "dagger")
