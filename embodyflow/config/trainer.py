"""How models are trained."""

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from embodyflow.config.base import Config, Fraction, PositiveFloat, PositiveInt


class ScheduleConfig(Config):
    """The learning rate over a run's iterations.

    Attributes:
        name: after the warm-up it stays, or falls to the final fraction along a line or half a cosine.
        warmup_iterations: over which it rises to its full size.
        final_fraction: of the full size, that it falls to.
    """

    name: Literal["constant", "linear", "cosine"] = "constant"
    warmup_iterations: Annotated[int, Field(ge=0, strict=True)] = 0
    final_fraction: Fraction = 0.0

    def fraction(self, iteration: int, iterations: int) -> float:
        """Return the share of the full learning rate in an iteration, counted from 1."""
        warmup = self.warmup_iterations
        if iteration <= warmup:
            return iteration / (warmup + 1)
        done = (iteration - 1 - warmup) / max(iterations - warmup, 1)
        left = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}[self.name]
        return left if self.name == "constant" else self.final_fraction + (1 - self.final_fraction) * left


class OptimizerConfig(Config):
    """How far a model is trained on the rows of one iteration.

    Attributes:
        learning_rate: of AdamW.
        epochs: passes over the rows.
    """

    learning_rate: PositiveFloat
    epochs: PositiveInt


class TrainerConfig(OptimizerConfig):
    """How the policy is trained; what is not in :class:`CriticConfig` holds for the critic too.

    Attributes:
        num_ranks: processes of the FSDP2 group.
        schedule: of the learning rates.
        weight_decay, max_grad_norm, adam_epsilon: of AdamW.
        num_minibatches: optimizer steps per pass.
        micro_batch_rows: rows of one forward pass; ``null`` means all rows of the mini-batch.
        micro_batch_tokens: tokens of one forward pass instead: as many rows as hold that many.
        parity_tolerance: largest allowed difference between a rollout's log-probs and the trainer's.
        keep_checkpoints: newest checkpoints kept on disk.
    """

    num_ranks: PositiveInt
    schedule: ScheduleConfig = ScheduleConfig()
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    max_grad_norm: PositiveFloat = 1.0
    adam_epsilon: PositiveFloat = 1e-8
    num_minibatches: PositiveInt
    micro_batch_rows: PositiveInt | None = None
    micro_batch_tokens: PositiveInt | None = None
    parity_tolerance: PositiveFloat = 1e-4
    keep_checkpoints: PositiveInt = 2

    @model_validator(mode="after")
    def _one_limit(self) -> "TrainerConfig":
        if self.micro_batch_rows is not None and self.micro_batch_tokens is not None:
            raise ValueError("micro_batch_rows and micro_batch_tokens must not both be set")
        return self


class CriticConfig(OptimizerConfig):
    """How the critic is trained, where ``algorithm.advantage`` needs one (``gae``)."""

    learning_rate: PositiveFloat = 1e-3
    epochs: PositiveInt = 5
