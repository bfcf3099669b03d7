"""What ``trainer.compile`` needs of the other keys."""

from embodyflow.algorithms.algorithm_config import AlgorithmConfig
from embodyflow.algorithms.algorithm_registry import LOSSES
from embodyflow.config.trainer import TrainerConfig
from embodyflow.policies.policy_config import ControlPolicyConfig

UNCOMPILED_LOSSES = ("clip_cov", "kl_cov")
"""Losses that select tokens by random numbers from the seeds of rows, which no graph of tensors can."""


def check_compilation(
    trainer: TrainerConfig, algorithm: AlgorithmConfig, policy: ControlPolicyConfig, device: str
) -> None:
    """Refuse settings whose optimizer steps cannot be compiled.

    Args:
        trainer: Settings of the section ``trainer``, with ``compile``.
        algorithm: Settings of the section ``algorithm``.
        policy: Policy to train.
        device: Device of the trainer.

    Raises:
        ValueError: One line with the key and what is allowed.
    """
    if not policy.compiles:
        raise ValueError(
            f"trainer.compile=true: allowed is false with policy.name={policy.name}; mlp_gaussian and mlp_categorical "
            "compile, and a policy whose configuration has compiles = True"
        )
    compiled = [name for name in LOSSES.built_in if name not in UNCOMPILED_LOSSES]
    if algorithm.loss not in compiled:
        raise ValueError(
            f"algorithm.loss={algorithm.loss}: allowed with trainer.compile=true are {', '.join(compiled)}"
        )
    needed = {
        "cluster.device": (device, ("cpu",)),
        "trainer.num_ranks": (trainer.num_ranks, (1,)),
        "trainer.precision": (trainer.precision, ("float32",)),
        "trainer.lora": (trainer.lora, (None,)),
        "trainer.activation_checkpointing": (trainer.activation_checkpointing, (False,)),
        "trainer.micro_batch_rows": (trainer.micro_batch_rows, (None,)),
        "trainer.micro_batch_tokens": (trainer.micro_batch_tokens, (None,)),
        "algorithm.old_log_probs": (algorithm.old_log_probs, ("recomputed", "recorded")),
        "algorithm.top_entropy_fraction": (algorithm.top_entropy_fraction, (1,)),
    }
    for key, (value, allowed) in needed.items():
        if value not in allowed:
            words = " or ".join("null" if each is None else str(each).lower() for each in allowed)
            given = str(value).lower() if isinstance(value, bool | float | int | str) else "set"
            raise ValueError(f"{key}={given}: allowed with trainer.compile=true is {words}")
