"""An engine without weights and a node without work, which the workers of ``orchestration.py`` run."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from embodyflow.config import RunConfig
from embodyflow.data.parts import FullWeights, in_parts
from embodyflow.types import Batch, NodeOutput

METRICS = {"rollout/success_rate": 0.5, "rollout/reward": 0.5, "policy/entropy": 4.0, "policy/kl_to_reference": 0.0}


class EmptyEngine:
    """An engine with the methods that a session calls on trainer and rollout engines, without any work in them.

    Args:
        config: Run configuration.
        rank: Rank of this process, 0 to ``world_size - 1``.
        world_size: Number of ranks in the group.
    """

    def __init__(self, config: RunConfig, rank: int, world_size: int) -> None:
        pass

    def weights_in_parts(self, *, frozen_only: bool = False) -> FullWeights:
        """Return a single weight."""
        weights = {"weight": np.zeros(1, np.float32)}
        return FullWeights(weights, in_parts(weights))

    def fingerprint(self) -> tuple[int, ...]:
        """Return an empty tuple, because there are no weights."""
        return ()

    def probe(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return no arrays."""
        return {}

    def update_weights(self, weights: dict[str, np.ndarray[Any, Any]], version: int) -> None:
        """Do nothing."""

    def save(self, folder: str, whole: bool = True) -> None:
        """Write an empty checkpoint."""
        (Path(folder) / "empty").touch()


def empty_node(batch: Batch | None, config: Any = None, **kwargs: Any) -> NodeOutput:
    """Pass one row on, so that rows move from node to node."""
    return NodeOutput(Batch({"uid": torch.zeros(1, dtype=torch.int64)}, [1]) if batch is None else batch, METRICS)
