"""The node that records an iteration's episodes, so that they can be replayed later."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from embodyflow.nodes.engines import Engine
from embodyflow.types import Batch, NodeOutput

TRAINED = (
    "success",
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
"""Columns that training adds to a row; of an embodied row ``success`` is there before."""


def keep_episodes(batch: Batch, config: Any = None, *, worker: Engine, **kwargs: Any) -> NodeOutput:
    """Write this rank's rows without images to ``<config["folder"]>/<config["part"]>-<rank>.npz``.

    With ``config["trained"]`` it writes ``uid`` and the columns that training added, nothing else.
    """
    if config["trained"]:
        columns = {name: batch[name] for name in ("uid", *TRAINED) if name in set(batch.keys())}
    else:
        columns = {str(name): column for name, column in batch.items() if column.dtype is not torch.uint8}
    folder = Path(config["folder"])  # never created here: if another rank failed, the record was dropped
    arrays: dict[str, Any] = {name: column.cpu().numpy() for name, column in columns.items()}
    np.savez(folder / f"{config['part']}-{worker.rank}.npz", **arrays)
    return NodeOutput(None)
