"""The configuration of training."""

import math
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from embodyflow.config.base import Config, Fraction, LearningRate, PositiveFloat, PositiveInt

ROUNDING = {"float32": 0.0, "float16": 1e-3, "bfloat16": 1e-2}
"""Smallest difference to expect between log-probs that two implementations compute in a precision."""


def check_tolerance(key: str, tolerance: float, precisions: Mapping[str, str]) -> None:
    """Refuse a tolerance that is too small for the given precisions.

    Args:
        key: Configuration key of the tolerance.
        tolerance: Largest allowed difference between log-probs.
        precisions: Precisions by configuration key.

    Raises:
        ValueError: One line that names both keys and what is allowed.
    """
    for name, precision in precisions.items():
        if tolerance < ROUNDING[precision]:
            raise ValueError(
                f"{key}={tolerance:g}: is too small for {name}={precision}; allowed is at least "
                f"{ROUNDING[precision]:g}, and 0.2 is enough for most models"
            )


class ScheduleConfig(Config):
    """The learning rate over a run's iterations.

    The rate would reach the final fraction in the iteration after the last, so that no iteration trains at rate 0.

    Attributes:
        name: Shape after the warm-up: constant, or a linear or cosine decay to final_fraction.
        warmup_iterations: Iterations of linear warm-up to the full rate.
        final_fraction: Fraction of the full rate at the end of the decay.
    """

    name: Literal["constant", "linear", "cosine"] = "constant"
    warmup_iterations: Annotated[int, Field(ge=0, strict=True)] = 0
    final_fraction: Fraction = 0.0

    @model_validator(mode="after")
    def _check_final_fraction(self) -> "ScheduleConfig":
        if self.name == "constant" and self.final_fraction:
            raise ValueError(f"final_fraction={self.final_fraction:g}: must be 0 with name=constant")
        return self

    def fraction(self, iteration: int, iterations: int) -> float:
        """Return the fraction of the full learning rate in an iteration.

        Args:
            iteration: Index of the iteration, from 1; after the last one of the schedule the rate stays as it is.
            iterations: Length of the schedule.
        """
        warmup, iteration = self.warmup_iterations, min(iteration, iterations)
        if iteration <= warmup:
            return iteration / (warmup + 1)
        done = (iteration - 1 - warmup) / max(iterations - warmup, 1)
        left = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}[self.name]
        return left if self.name == "constant" else self.final_fraction + (1 - self.final_fraction) * left


class OptimizerConfig(Config):
    """The optimizer settings that policy and critic each have.

    Attributes:
        learning_rate: Learning rate of AdamW.
        epochs: Passes over the rows of an iteration.
    """

    learning_rate: LearningRate
    epochs: PositiveInt


class LoRAConfig(Config):
    """Low-rank adapters that are trained instead of the policy's weights (Hu et al. 2021, arXiv:2106.09685).

    There is no dropout, since repeated forward passes must give a row the same log-probs.

    Attributes:
        rank: Rank of the adapters.
        alpha: Scale of the adapters, which are multiplied by alpha / rank; ``null`` means twice the rank.
        target_modules: Suffixes of the names of the linear layers that get an adapter; ``null`` means all in the
            policy's blocks. Frozen layers (``policy.train_expert_only``) get none.
    """

    rank: PositiveInt
    alpha: PositiveFloat | None = None
    target_modules: Annotated[tuple[str, ...], Field(min_length=1)] | None = None


class ProfileConfig(Config):
    """Profiles of the trainer by torch.profiler.

    Attributes:
        iterations: Iterations whose nodes are profiled; empty profiles none.
        ranks: Ranks of the trainer group that are profiled.
    """

    iterations: tuple[PositiveInt, ...] = ()
    ranks: Annotated[tuple[Annotated[int, Field(ge=0, strict=True)], ...], Field(min_length=1)] = (0,)


class TrainerConfig(OptimizerConfig):
    """How the policy is trained. Settings that :class:`CriticConfig` lacks apply to the critic too.

    Attributes:
        num_ranks: Processes of the trainer group.
        tensor_parallel_size: Ranks that split the matrices of one copy of a language model and compute on the same
            rows. FSDP2 shards the model over the other ranks, which split the rows.
        lora: Low-rank adapters that RL trains instead of the policy's weights; ``null`` trains the weights. A warm
            start and the critic always train weights.
        precision: Precision of computation. Weights, accumulated gradients and log-softmax are always float32.
        activation_checkpointing: Recompute a block's activations in the backward pass instead of keeping them.
        schedule: Schedule of the learning rates of policy and critic.
        schedule_iterations: Length of the schedule; ``null`` means ``iterations``. After it the rate stays at its last
            value. A resumed run may set it beside ``iterations``.
        weight_decay: Weight decay of AdamW.
        max_grad_norm: Norm that gradients are clipped to; ``null`` clips none.
        adam_epsilon: Epsilon of AdamW.
        num_minibatches: Optimizer steps per epoch.
        micro_batch_rows: Rows of one forward pass; ``null`` means all rows of the mini-batch.
        micro_batch_tokens: Most tokens of one forward pass, an alternative to micro_batch_rows; ``null`` means no
            limit.
        parity_tolerance: Largest allowed difference between the log-probs of rollout and trainer.
        keep_checkpoints: Number of newest checkpoints kept on disk.
        iterations_per_commit: Number of iterations that become part of the run together, with one checkpoint. Whatever
            fails in between, the run repeats the iterations since the last commit, with the same result. Iterations
            before an evaluation and the last one end a commit too.
        profile: Iterations and ranks that torch.profiler observes. Weights stay bit-identical.
        compile: Let torch compile the forward passes, losses and gradients of a step, in the first steps of each
            process. Control jobs on one rank and off-policy training may set it. The results differ from those without
            it in the last bits.
    """

    num_ranks: PositiveInt
    tensor_parallel_size: PositiveInt = 1
    lora: LoRAConfig | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    activation_checkpointing: bool = False
    schedule: ScheduleConfig = ScheduleConfig()
    schedule_iterations: PositiveInt | None = None
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    max_grad_norm: PositiveFloat | None = 1.0
    adam_epsilon: PositiveFloat = 1e-8
    num_minibatches: PositiveInt
    micro_batch_rows: PositiveInt | None = None
    micro_batch_tokens: PositiveInt | None = None
    parity_tolerance: PositiveFloat = 1e-4
    keep_checkpoints: PositiveInt = 2
    iterations_per_commit: PositiveInt = 1
    profile: ProfileConfig = ProfileConfig()
    compile: bool = False

    def rate_fraction(self, iteration: int, iterations: int) -> float:
        """Return the share of the full learning rate in an iteration, from 1, of a run of ``iterations``."""
        return self.schedule.fraction(iteration, self.schedule_iterations or iterations)

    @property
    def num_parts(self) -> int:
        """Number of parts that ranks split the rows into."""
        return self.num_ranks // self.tensor_parallel_size

    @model_validator(mode="after")
    def _check_ranks(self) -> "TrainerConfig":
        if self.num_ranks % self.tensor_parallel_size:
            allowed = ", ".join(str(size) for size in range(1, self.num_ranks + 1) if self.num_ranks % size == 0)
            raise ValueError(
                f"tensor_parallel_size={self.tensor_parallel_size} must divide num_ranks={self.num_ranks}; "
                f"allowed are {allowed}"
            )
        return self

    @model_validator(mode="after")
    def _check_micro_batch_limits(self) -> "TrainerConfig":
        if self.micro_batch_rows is not None and self.micro_batch_tokens is not None:
            raise ValueError("micro_batch_rows and micro_batch_tokens must not both be set")
        return self


class CriticConfig(OptimizerConfig):
    """The critic, and how it is trained, if ``algorithm.advantage`` needs one (``gae``).

    Attributes:
        features: Features that values are computed from: those of the critic's ``own`` model, or those of the
            ``policy``, which a small head reads. ``epochs`` are those of ``tasks:train_critic``, which trains the head
            alone; in a pipeline with ``tasks:train_actor_critic``, such as ``ppo_joint``, the head takes the policy's
            steps.
        level: Number of values of a decision: one for its ``chunk``, or one for each ``action`` of the chunk. With
            ``action`` the actions are the steps of GAE.
        coef: Coefficient of the critic's loss in the gradient of the policy's weights, where a head takes the policy's
            steps; 0 trains the head alone.
    """

    learning_rate: LearningRate = 1e-3
    epochs: PositiveInt = 5
    features: Literal["own", "policy"] = "own"
    level: Literal["chunk", "action"] = "chunk"
    coef: Annotated[float, Field(ge=0)] = 1.0

    @model_validator(mode="after")
    def _check_features(self) -> "CriticConfig":
        for key in ("level", "coef"):
            if self.features == "own" and (value := getattr(self, key)) != type(self).model_fields[key].default:
                raise ValueError(f"{key}={value}: only used with features=policy")
        return self
