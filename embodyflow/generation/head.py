"""The head of a language model, computed at chosen tokens alone.

With a vocabulary of a quarter of a million tokens, the logits of every prompt at the last place of every other take
gigabytes. transformers can leave out places of a batch, but not of a row.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def head_at(model: Any, rows: torch.Tensor, positions: torch.Tensor) -> Iterator[None]:
    """Make a transformers model return the logits [1, K, V] of K tokens within the block.

    Args:
        model: Model.
        rows: Row of each token, int64 [K].
        positions: Place of each token in its row, int64 [K].
    """

    def choose(_: Any, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (inputs[0][rows, positions][None],)

    hook = model.get_output_embeddings().register_forward_pre_hook(choose)
    try:
        yield
    finally:
        hook.remove()
