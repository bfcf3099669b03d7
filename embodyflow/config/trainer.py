"""How models are trained."""

import math
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from embodyflow.config.base import Config, Fraction, PositiveFloat, PositiveInt

ROUNDING = {"float32": 0.0, "float16": 1e-3, "bfloat16": 1e-2}
"""By how much log-probs computed in it are off at least, where the other side computes in another way."""


def check_tolerance(key: str, tolerance: float, precisions: Mapping[str, str]) -> None:
    """Refuse a tolerance that precisions, by their keys, cannot hold.

    Raises:
        ValueError: one line that names both keys and what is allowed.
    """
    for name, precision in precisions.items():
        if tolerance < ROUNDING[precision]:
            raise ValueError(
                f"{key}={tolerance:g}: cannot hold with {name}={precision}; allowed is {ROUNDING[precision]:g} and "
                "more, 0.2 is enough for most models"
            )


class ScheduleConfig(Config):
    """The learning rate over a run's iterations.

    The final fraction is that of the iteration after the last, so that none is trained at rate 0.

    Attributes:
        name: after the warm-up it stays, or falls to the final fraction along a line or half a cosine.
        warmup_iterations: over which it rises to its full size.
        final_fraction: of the full size, that it falls to.
    """

    name: Literal["constant", "linear", "cosine"] = "constant"
    warmup_iterations: Annotated[int, Field(ge=0, strict=True)] = 0
    final_fraction: Fraction = 0.0

    @model_validator(mode="after")
    def _falls(self) -> "ScheduleConfig":
        if self.name == "constant" and self.final_fraction:
            raise ValueError(f"final_fraction={self.final_fraction:g}: name=constant falls to none; allowed is 0")
        return self

    def fraction(self, iteration: int, iterations: int) -> float:
        """Return the share of the full learning rate in an iteration.

        Args:
            iteration: Index of the iteration, from 1; after the schedule's last one the rate stays as it is.
            iterations: Length of the schedule.
        """
        warmup, iteration = self.warmup_iterations, min(iteration, iterations)
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


class LoRAConfig(Config):
    """Adapters that are trained in place of the policy's own weights (Hu et al. 2021, arXiv:2106.09685).

    There is no dropout: a row's log-probs must be the same every time they are asked for.

    Attributes:
        rank: of the adapters' products.
        alpha: the products are multiplied by alpha / rank; ``null`` means twice the rank.
        target_modules: ends of the names of the linear layers that get one; ``null`` means all in the policy's blocks.
            What the policy leaves as it is (``policy.train_expert_only``) gets none.
    """

    rank: PositiveInt
    alpha: PositiveFloat | None = None
    target_modules: Annotated[tuple[str, ...], Field(min_length=1)] | None = None


class TrainerConfig(OptimizerConfig):
    """How the policy is trained; what is not in :class:`CriticConfig` holds for the critic too.

    Attributes:
        num_ranks: processes of the trainer group.
        tensor_parallel_size: ranks that split the matrices of one copy of a language model and compute on the same
            rows; over the others FSDP2 shards it, and rows are cut.
        lora: adapters that are trained in RL instead of the policy; a warm start and the critic train what they do
            without.
        precision: of computation; weights, their sums of gradients and log-softmax are float32 whatever it is.
        activation_checkpointing: compute a block's activations again in the backward pass instead of keeping them.
        schedule: of the learning rates.
        schedule_iterations: Length of the schedule; ``null`` means ``iterations``. After it the rate stays at its last
            value. A resumed run may set it beside ``iterations``.
        weight_decay, adam_epsilon: of AdamW.
        max_grad_norm: that gradients are clipped to.
        num_minibatches: optimizer steps per pass.
        micro_batch_rows: rows of one forward pass; ``null`` means all rows of the mini-batch.
        micro_batch_tokens: tokens of one forward pass instead: as many rows as hold that many.
        parity_tolerance: largest allowed difference between a rollout's log-probs and the trainer's.
        keep_checkpoints: newest checkpoints kept on disk.
    """

    num_ranks: PositiveInt
    tensor_parallel_size: PositiveInt = 1
    lora: LoRAConfig | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    activation_checkpointing: bool = False
    schedule: ScheduleConfig = ScheduleConfig()
    schedule_iterations: PositiveInt | None = None
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    max_grad_norm: PositiveFloat = 1.0
    adam_epsilon: PositiveFloat = 1e-8
    num_minibatches: PositiveInt
    micro_batch_rows: PositiveInt | None = None
    micro_batch_tokens: PositiveInt | None = None
    parity_tolerance: PositiveFloat = 1e-4
    keep_checkpoints: PositiveInt = 2

    def rate_fraction(self, iteration: int, iterations: int) -> float:
        """Return the share of the full learning rate in an iteration, from 1, of a run of ``iterations``."""
        return self.schedule.fraction(iteration, self.schedule_iterations or iterations)

    @property
    def num_parts(self) -> int:
        """Parts that rows are cut into."""
        return self.num_ranks // self.tensor_parallel_size

    @model_validator(mode="after")
    def _ranks_are_shared_out(self) -> "TrainerConfig":
        if self.num_ranks % self.tensor_parallel_size:
            allowed = ", ".join(str(size) for size in range(1, self.num_ranks + 1) if self.num_ranks % size == 0)
            raise ValueError(
                f"tensor_parallel_size={self.tensor_parallel_size} must divide num_ranks={self.num_ranks}; "
                f"allowed are {allowed}"
            )
        return self

    @model_validator(mode="after")
    def _one_limit(self) -> "TrainerConfig":
        if self.micro_batch_rows is not None and self.micro_batch_tokens is not None:
            raise ValueError("micro_batch_rows and micro_batch_tokens must not both be set")
        return self


class CriticConfig(OptimizerConfig):
    """How the critic is trained, where ``algorithm.advantage`` needs one (``gae``)."""

    learning_rate: PositiveFloat = 1e-3
    epochs: PositiveInt = 5
