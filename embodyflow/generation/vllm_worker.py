"""What the engine changes inside of vLLM's workers, of which there is one per device: weights and seeded draws.

An engine in this process calls the functions on each worker. A server gets the same as methods of its workers, by
``vllm serve … --worker-extension-cls embodyflow.generation.vllm_worker.WeightReload``.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy.typing as npt
import torch
import vllm
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


def withhold_unfinished_prompts(worker: Any) -> None:
    """Let a request draw from its own seed only once its whole prompt is in the cache.

    vLLM splits a prompt over several steps if it exceeds what is left of ``max_num_batched_tokens``. In every step it
    draws a token for every row and discards those of unfinished prompts. It then sets the offset of their generators
    back, so that splits do not change what a seed gives. A generator on a CPU has no offset, and vLLM 0.32 fails with
    "CPU Generator does not use offset". Here the rows of unfinished prompts have no generator while vLLM samples: their
    discarded tokens come from the process's generator, and the request's own keeps its state.

    Raises:
        RuntimeError: This version of vLLM's model runner lacks a part that this needs.
    """
    runner = worker.model_runner
    missing = [name for name in ("sample_tokens", "discard_request_mask", "input_batch") if not hasattr(runner, name)]
    if missing or not hasattr(runner.input_batch, "generators"):
        raise RuntimeError(
            f"vLLM {vllm.__version__} cannot sample with seeds on a CPU: its model runner has no "
            f"{', '.join(missing) or 'input_batch.generators'}; version 0.32.0 has"
        )
    sample_tokens = runner.sample_tokens

    def sample(grammar_output: Any) -> Any:
        generators: dict[int, torch.Generator] = runner.input_batch.generators
        unfinished = runner.discard_request_mask.np[: runner.input_batch.num_reqs].nonzero()[0].tolist()
        withheld = {row: generators.pop(row) for row in unfinished if row in generators}
        try:
            return sample_tokens(grammar_output)
        finally:
            generators.update(withheld)

    runner.sample_tokens = sample


class WeightReload:
    """Methods that a server's workers get in addition to their own."""

    def reload_weights_and_heads(self, weights_path: str) -> None:
        """Load the checkpoint in a folder and repack the output heads."""
        worker: Any = self
        worker.reload_weights(weights_path=weights_path)
        refresh_heads(worker)
