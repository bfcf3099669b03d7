"""How models are trained."""

from typing import Annotated

from pydantic import Field, model_validator

from embodyflow.config.base import Config, PositiveFloat, PositiveInt


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
        weight_decay, max_grad_norm, adam_epsilon: of AdamW.
        num_minibatches: optimizer steps per pass.
        micro_batch_rows: rows of one forward pass; ``null`` means all rows of the mini-batch.
        micro_batch_tokens: tokens of one forward pass instead: as many rows as hold that many.
        parity_tolerance: largest allowed difference between a rollout's log-probs and the trainer's.
        keep_checkpoints: newest checkpoints kept on disk.
    """

    num_ranks: PositiveInt
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
