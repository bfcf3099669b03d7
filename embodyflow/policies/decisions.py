"""What a batch of episodes says about each decision that was taken."""

import torch
from tensordict import TensorDict


def at_decisions(values: torch.Tensor, decided: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return what was found for each decision at its place in the batch, of the mask's shape; zero outside the mask.

    Args:
        values: float32 ``[D, ...]`` of the D decisions that were taken; of one blank decision where none was.
        decided: bool ``[N, T]``, true for those D.
        mask: bool ``[N, T, ...]``.
    """
    blank = values.new_zeros(mask.shape)
    if not decided.any():
        return values.sum() * 0.0 + blank
    return blank.index_put((decided,), values * mask[decided])


def decisions(batch: TensorDict, keys: list[str], device: str) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return which decisions were taken and what was seen before them.

    Args:
        batch: N embodied rows (:mod:`embodyflow.types`).
        keys: columns that are observed before each decision.
        device: of the result.

    Returns:
        bool ``[N, T]`` with D true, and the D observations, ``instruction_ids`` included. Without any decision there
        is one blank observation: a sharded model's forward pass is a collective, and a rank without rows takes part.
    """
    decided = batch["loss_mask"].any(-1).to(device)
    ids = batch["instruction_ids"].to(device).unsqueeze(1).expand(-1, decided.shape[1], -1)
    seen = {key: batch[key].to(device) for key in keys} | {"instruction_ids": ids}
    observation = {key: values[decided] for key, values in seen.items()}
    if not decided.any():
        observation = {key: values.new_zeros(1, *values.shape[1:]) for key, values in observation.items()}
    return decided, observation
