"""The record of an iteration's episodes, for whoever wants to see one again."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from embodyflow.types import Batch, NodeOutput

TRAINED = (
    "scores",
    "progress_distance",
    "rewards",
    "kl_penalty",
    "advantages",
    "returns",
    "values",
    "old_log_probs",
    "ref_log_probs",
)
"""Columns that training adds to a row."""


def keep_episodes(batch: Batch, config: Any = None, *, worker: Any, **kwargs: Any) -> NodeOutput:
    """Write this rank's rows into a file of ``config["folder"]`` that begins with ``config["part"]``, images left out.

    Of rows that were trained on (``config["trained"]``) only what training added to them is written, with their uid.
    """
    if config["trained"]:
        columns = {name: batch[name] for name in ("uid", *TRAINED) if name in set(batch.keys())}
    else:
        columns = {str(name): column for name, column in batch.items() if column.dtype is not torch.uint8}
    folder = Path(config["folder"])  # not made here: it is gone where another rank failed and the record was dropped
    arrays: dict[str, Any] = {name: column.cpu().numpy() for name, column in columns.items()}
    np.savez(folder / f"{config['part']}-{worker.rank}.npz", **arrays)
    return NodeOutput(None)
