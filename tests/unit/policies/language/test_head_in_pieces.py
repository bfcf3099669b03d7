"""The head in pieces: equal to the whole head, and logits that never exist as a whole."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from language_models import VOCAB, save_model
from language_rows import GROUPED, GROUPS, LENGTHS, rows, siblings
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from embodyflow.config.generation import HFConfig
from embodyflow.generation.interface import Request, Sampling
from embodyflow.generation.transformers_engine.engine import HFEngine
from embodyflow.policies.language.causal_lm import head_causal_lm
from embodyflow.policies.language.causal_lm.configuration_causal_lm import CausalLMConfig, ScratchConfig
from embodyflow.policies.language.causal_lm.policy_causal_lm import CausalLMPolicy

TOKENIZER = "embodyflow.prompts.arithmetic:build_tokenizer"
SIZES: dict[str, Any] = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 4}
ROWS = 16
"""Rows of the largest tensor that the tests of memory allow; the weight of the head has 8."""


class Largest(TorchDispatchMode):
    """Notes the number of elements of the largest tensor that an operation returns."""

    elements = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = operation(*args, **(kwargs or {}))
        sizes = [each.numel() for each in tree_leaves(outputs) if isinstance(each, torch.Tensor)]
        self.elements = max(self.elements, *sizes, 0)
        return outputs


class LargestLogits(TorchDispatchMode):
    """Notes the number of rows of the largest tensor with a column for each token of the vocabulary."""

    rows = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = operation(*args, **(kwargs or {}))
        found = [each for each in tree_leaves(outputs) if isinstance(each, torch.Tensor) and each.ndim]
        self.rows = max([self.rows, *(each.numel() // len(VOCAB) for each in found if each.shape[-1] == len(VOCAB))])
        return outputs


@pytest.fixture
def pieces_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    return lambda num_logits: monkeypatch.setattr(head_causal_lm, "PIECE", num_logits)


def built(model_type: str, **changes: Any) -> CausalLMPolicy:
    torch.manual_seed(0)
    attention = "eager" if model_type in ("gemma2", "gpt_oss") else "sdpa"
    scratch = ScratchConfig(model_type=model_type, initializer_range=0.3, **SIZES | changes)
    return CausalLMPolicy(CausalLMConfig(scratch=scratch, tokenizer=TOKENIZER, attn_implementation=attention), "cpu")


def trained_on(policy: CausalLMPolicy, batch: Any) -> list[torch.Tensor]:
    """Return log-probs, entropies and the gradients of a loss of both."""
    policy.model.zero_grad()
    log_probs, entropy = policy.evaluate(batch, 0.7)
    (log_probs * batch["action_tokens"] + 0.1 * entropy.square()).sum().backward()
    gradients = [each.grad for each in policy.model.parameters() if each.grad is not None]
    return [log_probs.detach(), entropy.detach(), *gradients]


@pytest.mark.parametrize("model_type", sorted(head_causal_lm.MODEL_TYPES))
def test_pieces_equal_the_whole(model_type: str, pieces_of: Callable[[int], None]) -> None:
    policy, batch = built(model_type), rows(LENGTHS)
    whole = trained_on(policy, batch)
    pieces_of(5 * policy.model.config.vocab_size)  # 83 tokens: the last piece has three
    for mine, expected in zip(trained_on(policy, batch), whole, strict=True):
        torch.testing.assert_close(mine, expected, atol=1e-4, rtol=1e-4)


def test_a_small_batch_is_computed_at_once_bit_by_bit(pieces_of: Callable[[int], None]) -> None:
    policy, batch, seen = built("qwen3"), siblings(GROUPS, GROUPED), []
    policy.model.lm_head.register_forward_hook(lambda module, inputs, outputs: seen.append(len(outputs.flatten(0, -2))))
    trained_on(policy, batch)
    assert len(seen) == 1
    pieces_of(4 * policy.model.config.vocab_size)
    trained_on(policy, batch)
    assert len(seen) == 1  # pieces multiply by the head's weight themselves


def test_a_head_with_adapters_is_called_for_each_piece(pieces_of: Callable[[int], None]) -> None:
    policy, batch, seen = built("qwen3"), siblings(GROUPS, GROUPED), []
    head = policy.model.lm_head
    policy.model.lm_head = torch.nn.Sequential(head)
    whole = trained_on(policy, batch)
    head.register_forward_hook(lambda module, inputs, outputs: seen.append(len(outputs.flatten(0, -2))))
    pieces_of(4 * policy.model.config.vocab_size)
    for mine, expected in zip(trained_on(policy, batch), whole, strict=True):
        torch.testing.assert_close(mine, expected, atol=1e-4, rtol=1e-4)
    assert max(seen) == 4 and sum(seen) == 2 * 83  # forward, and again backward


@contextmanager
def large_vocabulary(policy: CausalLMPolicy, size: int) -> Iterator[Largest]:
    policy.model.resize_token_embeddings(size)
    with Largest() as largest:
        yield largest


@pytest.mark.parametrize("in_pieces", [True, False])
def test_no_tensor_holds_the_logits_of_a_batch(in_pieces: bool, pieces_of: Callable[[int], None]) -> None:
    policy, batch, size = built("gemma3_text"), rows(LENGTHS), 4096
    if in_pieces:
        pieces_of(ROWS * size)
    with large_vocabulary(policy, size) as largest:
        trained_on(policy, batch)
    assert (largest.elements <= ROWS * size) == in_pieces
    assert in_pieces or largest.elements >= 50 * size  # the same check sees the whole logits


@pytest.mark.parametrize("in_pieces", [True, False])
def test_no_tensor_of_an_engine_holds_the_logits_of_a_prompt(
    in_pieces: bool, pieces_of: Callable[[int], None], tmp_path: Path
) -> None:
    engine = HFEngine(HFConfig(), save_model(tmp_path, tied=True), "cpu")
    sequences = [(tuple(range(1, 20)), tuple(range(1, 30))), (tuple(range(1, 40)), (1, 2))]
    expected = engine.score(sequences)
    if in_pieces:
        pieces_of(ROWS * len(VOCAB))
    with LargestLogits() as logits:
        scores = engine.score(sequences)
    assert (logits.rows <= ROWS) == in_pieces
    for mine, theirs in zip(scores, expected, strict=True):
        torch.testing.assert_close(torch.from_numpy(mine), torch.from_numpy(theirs), atol=1e-5, rtol=0)
    heads: list[int] = []
    head = engine._model.get_output_embeddings()
    head.register_forward_hook(lambda module, inputs, outputs: heads.append(outputs.numel() // len(VOCAB)))
    engine.generate([Request(tuple(range(1, 40)), 0)], Sampling(1))
    assert heads == [1]  # a prompt has logits at its last place only
