"""What takes the optimizer steps of a pass over the rows."""

from collections.abc import Sequence
from typing import Protocol

import torch
from tensordict import TensorDict

Totals = dict[str, list[tuple[torch.Tensor, torch.Tensor]]]
"""The ``(sum, count)`` of each micro-batch by metric."""


class Steps(Protocol):
    """Optimizer steps of some models, each of which minimises the sum of their losses on a mini-batch.

    Attributes:
        compile_seconds: Seconds that compiling has taken so far, including loading from the cache.
    """

    compile_seconds: float

    def take(self, rows: TensorDict, cuts: Sequence[slice], totals: Totals) -> list[tuple[float, int]]:
        """Take an optimizer step on each mini-batch; return gradient norms and numbers of micro-batches.

        Args:
            rows: This rank's prepared rows of all mini-batches.
            cuts: Rows of each mini-batch.
            totals: Metrics, to which those of the steps are added.

        Raises:
            FloatingPointError: A gradient is NaN or inf; the weights stay as they were before the step.
        """
