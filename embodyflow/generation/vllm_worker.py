"""What vLLM's own workers run of ours, one on each of its devices.

In process: functions that take the worker. For a server: ``vllm serve … --worker-extension-cls
embodyflow.generation.vllm_worker.WeightReload``.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy.typing as npt
import torch
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead


def load_weights(worker: Any, weights: Mapping[str, npt.NDArray[Any]]) -> None:
    """Load weights by their names in a checkpoint."""
    tensors: Iterable[tuple[str, torch.Tensor]] = ((name, torch.tensor(array)) for name, array in weights.items())
    worker.reload_weights(weights_iterator=tensors)
    refresh_heads(worker)


def refresh_heads(worker: Any) -> None:
    """Let every output head take up its weights again.

    On a CPU a head computes with a packed copy of its weights. ``reload_weights`` packs those of the layers that it
    loads; a tied head is not loaded, the embedding is, and without this it would go on with the weights of the start.
    """
    for module in worker.get_model().modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)


class WeightReload:
    """Methods that a server's workers have beside their own."""

    def reload_weights_and_heads(self, weights_path: str) -> None:
        """Load the checkpoint in a folder."""
        worker: Any = self
        worker.reload_weights(weights_path=weights_path)
        refresh_heads(worker)
