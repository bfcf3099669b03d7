"""Weight updates inside of vLLM's workers, of which there is one per device.

An engine in this process calls the functions on each worker. A server gets the same as methods of its workers, by
``vllm serve … --worker-extension-cls embodyflow.generation.vllm_worker.WeightReload``.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy.typing as npt
import torch
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead


def load_weights(worker: Any, weights: Mapping[str, npt.NDArray[Any]]) -> None:
    """Load weights under their names in a checkpoint."""
    tensors: Iterable[tuple[str, torch.Tensor]] = ((name, torch.tensor(array)) for name, array in weights.items())
    worker.reload_weights(weights_iterator=tensors)
    refresh_heads(worker)


def refresh_heads(worker: Any) -> None:
    """Repack the weights of every output head.

    On a CPU a head computes with a packed copy of its weights. ``reload_weights`` repacks only the layers it loads, and
    it loads the embedding instead of a tied head, which would then keep computing with its initial weights.
    """
    for module in worker.get_model().modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)


class WeightReload:
    """Methods that a server's workers get in addition to their own."""

    def reload_weights_and_heads(self, weights_path: str) -> None:
        """Load the checkpoint in a folder and repack the output heads."""
        worker: Any = self
        worker.reload_weights(weights_path=weights_path)
        refresh_heads(worker)
