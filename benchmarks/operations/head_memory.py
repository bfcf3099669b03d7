"""How much memory does the head of a model with Gemma's vocabulary take, as a whole and in pieces?

    python -m benchmarks.operations.head_memory

A Gemma 3 of random weights with two layers and 262,144 tokens gives log-probs of 512 response tokens, without and with
gradients for its layers. Each arm is a process of its own. The figures are the growth of the process's peak memory, the
largest tensor that an operation returned, and CPU seconds on one thread.
"""

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, Gemma3TextConfig

from benchmarks.commands import ROOT
from benchmarks.report import write_report
from embodyflow.data.batches import to_batch
from embodyflow.policies.language.causal_lm import head_causal_lm, shared_prompts_causal_lm
from embodyflow.policies.language.causal_lm.policy_causal_lm import chosen, pack

RESULTS = ROOT / "benchmarks/results/head_memory.json"
VOCABULARY = 262_144
SHAPE = (32, 16)
"""Rows, and tokens of a response."""
ARMS = [(head, work) for work in ("score", "train") for head in ("whole", "pieces")]


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the bytes of the largest tensor that an operation returns."""

    nbytes = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = operation(*args, **(kwargs or {}))
        sizes = [each.nbytes for each in tree_leaves(outputs) if isinstance(each, torch.Tensor)]
        self.nbytes = max(self.nbytes, *sizes, 0)
        return outputs


def measure(model: Any, head: str, work: str) -> dict[str, float]:
    """Return the figures of one arm; the peak of memory is this process's."""
    if head == "whole":
        head_causal_lm.PIECE = 2**62
    packed = pack(_rows(), model, "cpu")
    before, started, largest = _peak(), time.process_time(), Largest()  # type: ignore[no-untyped-call]
    with torch.set_grad_enabled(work == "train"), largest:
        log_probs, entropy = chosen(model, packed, 1.0)
        if work == "train":
            torch.autograd.backward(log_probs.sum() + 0.01 * entropy.sum())
    return {
        "memory_gb": (_peak() - before) / 1e9,
        "largest_tensor_gb": largest.nbytes / 1e9,
        "cpu_seconds": time.process_time() - started,
        "log_prob": log_probs.mean().item(),
    }


def _in_a_fork(work: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Do the work in a process that shares the memory of this one until it writes to it; return the figures."""
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    process = context.Process(target=lambda: answers.put(work()))
    process.start()
    answer: dict[str, float] = answers.get()
    process.join()
    return answer


def _model() -> Any:
    sizes = {"hidden_size": 640, "intermediate_size": 2048, "num_attention_heads": 4, "num_key_value_heads": 1}
    torch.manual_seed(0)
    config = Gemma3TextConfig(vocab_size=VOCABULARY, num_hidden_layers=2, head_dim=256, **sizes)
    model: Any = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    shared_prompts_causal_lm.use_in(model)
    model.get_output_embeddings().weight.requires_grad_(False)  # as with adapters
    return model.eval()


def _rows() -> Any:
    num_rows, length = SHAPE
    draw = np.random.default_rng(0).integers
    return to_batch(
        {
            "prompt_tokens": draw(VOCABULARY, size=(1, 32)).repeat(num_rows, 0),
            "prompt_length": np.full(num_rows, 32),
            "action_tokens": draw(VOCABULARY, size=(num_rows, length, 1)),
            "response_length": np.full(num_rows, length),
            "loss_mask": np.ones((num_rows, length, 1), np.bool_),
        }
    )


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    torch.set_num_threads(1)
    model = _model()
    comparisons: list[dict[str, Any]] = []
    for head, work in ARMS:
        comparisons.append({"head": head, "work": work, **_in_a_fork(partial(measure, model, head, work))})
        print(comparisons[-1], flush=True)
    write_report(RESULTS, ("torch", "transformers"), comparisons, vocabulary=VOCABULARY, tokens=SHAPE[0] * SHAPE[1])
    memory = {(each["head"], each["work"]): each["memory_gb"] for each in comparisons}
    if any(2 * memory["pieces", work] > memory["whole", work] for work in ("score", "train")):
        sys.exit("not met: pieces must take at most half of the memory")


if __name__ == "__main__":
    main()
