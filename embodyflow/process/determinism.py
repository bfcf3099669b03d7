"""Settings that make computations on a GPU deterministic."""

import os

import torch


def use_deterministic_kernels(device: str) -> None:
    """Make torch in this process use deterministic kernels and true float32, so that resumed runs are bit-identical.

    Call it before anything is on the GPU. torch warns where it has no deterministic kernel. On a CPU computations are
    deterministic already, and the call does nothing.

    Args:
        device: ``cpu`` or ``cuda``.
    """
    if device != "cuda":
        return
    # See docs.nvidia.com/cuda/cublas, "Results reproducibility".
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    os.environ.setdefault("FLASH_ATTENTION_DETERMINISTIC", "1")  # read by transformers
    torch.use_deterministic_algorithms(True, warn_only=True)
    # By default torch would fill uninitialized memory, which costs time and changes no result.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    # Convolutions use TF32 by default; rollout and trainer have different batches and agree only in true float32.
    torch.backends.cudnn.allow_tf32 = False
