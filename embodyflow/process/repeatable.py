"""A GPU's numbers, the same each time."""

import os

import torch


def repeat_numbers(device: str) -> None:
    """Have a GPU give the same numbers for the same rows, in this process, and float32 where float32 is meant.

    What a run that is resumed owes to one that was left in peace. Call it before anything is on the GPU. Where torch
    has no deterministic kernel it warns. On a CPU numbers are so already, and nothing is done.

    Args:
        device: ``cpu`` or ``cuda``.
    """
    if device != "cuda":
        return
    # docs.nvidia.com/cuda/cublas, "Results reproducibility"
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    os.environ.setdefault("FLASH_ATTENTION_DETERMINISTIC", "1")  # which transformers reads
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Memory that nobody reads would be filled too, which costs time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    # Convolutions would take TF32 by default: rollout and trainer, whose batches differ, agree to float32 only.
    torch.backends.cudnn.allow_tf32 = False
