"""The configuration of DAgger, imitation that goes on in the states that the learner visits."""

from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

import numpy as np
from pydantic import Field, field_validator

from embodyflow.config.base import Config, Fraction, PositiveInt
from embodyflow.config.trainer import TrainerConfig
from embodyflow.references import resolve

Observation: TypeAlias = dict[str, np.ndarray]
"""Entries of one observation by name."""

Gate: TypeAlias = Callable[[Observation, np.ndarray, np.ndarray], bool]
"""Function ``(observation, policy_action, expert_action) -> bool`` that decides whether the expert takes over a step.
Both actions are float ``[A]`` in the units of the environment."""


class DaggerConfig(Config):
    """DAgger (Ross et al. 2011, arXiv:1011.0686): the expert labels the states that the learner visits.

    Batch size, learning rate and smoothing of a fit are those of ``warm_start``, whose demonstrations begin the data.

    Attributes:
        steps: Optimizer steps of an iteration on the data of all iterations.
        beta: Base of the share of decisions that the expert executes: ``beta`` to the power i in iteration i, from 1.
            0 leaves all of them to the learner; the demonstrations are those of iteration 0.
        gate: Function ``module:function`` that lets the expert take over single steps, which alone are labelled then
            (HG-DAgger, Kelly et al. 2019, arXiv:1810.02890); ``null`` labels every step. Its type is :data:`Gate`.
    """

    steps: PositiveInt
    beta: Annotated[Fraction, Field(lt=1)] = 0.0
    gate: str | None = None

    @field_validator("gate")
    @classmethod
    def _check_gate(cls, gate: str | None) -> str | None:
        if gate is not None:
            try:
                found: Any = resolve(gate)
            except (ImportError, ValueError) as error:
                raise ValueError(f"must be module:function, and {error}") from error
            if not callable(found):
                raise ValueError("must be module:function, and names no function")
        return gate

    def expert_share(self, iteration: int) -> float:
        """Return the share of decisions that the expert executes in an iteration, from 1."""
        return float(self.beta**iteration)


def check_dagger(settings: DaggerConfig, trainer: TrainerConfig, *, streams: bool, keep_episodes: int) -> None:
    """Refuse settings that have no meaning with DAgger.

    Args:
        settings: Settings of DAgger.
        trainer: Settings of the section ``trainer``.
        streams: Whether workers play group after group.
        keep_episodes: Value of ``rollout.keep_episodes``.

    Raises:
        ValueError: One line with the key and what is allowed.
    """
    if settings.gate is not None and settings.beta:
        raise ValueError(f"dagger.beta={settings.beta:g}: allowed is 0 with dagger.gate, which decides who acts")
    if streams:
        raise ValueError("rollout.mode=streaming: allowed with dagger=null")
    if keep_episodes:
        raise ValueError(
            f"rollout.keep_episodes={keep_episodes}: allowed is 0 with dagger, whose rows hold no chunks to replay"
        )
    if trainer.num_ranks > 1:
        raise ValueError(f"trainer.num_ranks={trainer.num_ranks}: allowed is 1 with dagger")
    if trainer.lora is not None:
        raise ValueError("trainer.lora: must be null with dagger, which fits all weights as a warm start does")
