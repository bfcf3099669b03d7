"""The decisions in a batch of episodes, as rows of their own."""

import torch
from tensordict import TensorDict


def at_decisions(values: torch.Tensor, decided: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Put the values of decisions at their places in the batch, in the mask's shape; zero outside the mask.

    Args:
        values: Values of the D decisions that were taken, float32 ``[D, ...]``; of one blank decision if D = 0.
        decided: Mask of those D decisions, bool ``[N, T]``.
        mask: Numbers that count, bool ``[N, T, ...]``.
    """
    blank = values.new_zeros(mask.shape)
    if not decided.any():
        return values.sum() * 0.0 + blank
    return blank.index_put((decided,), values * mask[decided])


def decisions(batch: TensorDict, keys: list[str], device: str) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return a mask of the decisions that were taken, and the observations before them.

    Args:
        batch: N embodied rows (:mod:`embodyflow.types`).
        keys: Columns that are observed before each decision.
        device: Device of the result.

    Returns:
        The mask, bool ``[N, T]`` with D true, and the D observations, ``instruction_ids`` included. If D = 0 there is
        one blank observation: a sharded model's forward pass is a collective, so a rank without rows must take part.
    """
    decided = batch["loss_mask"].any(-1).to(device)
    ids = batch["instruction_ids"].to(device).unsqueeze(1).expand(-1, decided.shape[1], -1)
    seen = {key: batch[key].to(device) for key in keys} | {"instruction_ids": ids}
    observation = {key: values[decided] for key, values in seen.items()}
    if not decided.any():
        observation = {key: values.new_zeros(1, *values.shape[1:]) for key, values in observation.items()}
    return decided, observation
