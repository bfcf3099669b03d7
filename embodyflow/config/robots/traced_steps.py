"""Which settings allow optimizer steps that are traced to a graph, and ``trainer.compile``."""

from embodyflow.algorithms.algorithm_config import AlgorithmConfig
from embodyflow.algorithms.algorithm_registry import LOSSES
from embodyflow.config.trainer import TrainerConfig
from embodyflow.policies.policy_config import ActingPolicyConfig, ControlPolicyConfig

UNTRACED_LOSSES = ("clip_cov", "kl_cov")
"""Losses that select tokens by random numbers from the seeds of rows, which no graph of tensors can."""


def what_prevents_tracing(
    trainer: TrainerConfig, algorithm: AlgorithmConfig, policy: ControlPolicyConfig, device: str
) -> str | None:
    """Return one line with the key that prevents traced steps and what ``trainer.compile`` allows; ``None`` if none.

    Args:
        trainer: Settings of the section ``trainer``.
        algorithm: Settings of the section ``algorithm``.
        policy: Policy to train.
        device: Device of the trainer.
    """
    if not policy.compiles:
        return (
            f"trainer.compile=true: allowed is false with policy.name={policy.name}; mlp_gaussian and mlp_categorical "
            "compile, and a policy whose configuration has compiles = True"
        )
    traced = [name for name in LOSSES.built_in if name not in UNTRACED_LOSSES]
    if algorithm.loss not in traced:
        return f"algorithm.loss={algorithm.loss}: allowed with trainer.compile=true are {', '.join(traced)}"
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
            return f"{key}={given}: allowed with trainer.compile=true is {words}"
    return None


def what_prevents_compiled_updates(policy: ActingPolicyConfig, device: str) -> str | None:
    """Return one line with the key that prevents ``trainer.compile`` off-policy; ``None`` if none does.

    Args:
        policy: Policy to train off-policy.
        device: Device of the trainer.
    """
    if not policy.compiles:
        return (
            f"trainer.compile=true: allowed is false with policy.name={policy.name}; off-policy, "
            "mlp_squashed, mlp_deterministic, mlp_bounded and mlp_chunks compile, and a policy whose configuration has "
            "compiles = True"
        )
    if device != "cpu":
        return f"cluster.device={device}: allowed with trainer.compile=true is cpu"
    return None
