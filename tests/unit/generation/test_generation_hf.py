"""Continuous batching and the decoder of the transformers engine."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from language_models import VOCAB, save_model
from transformers import AutoConfig, AutoModelForCausalLM

from embodyflow.config.generation import HFConfig
from embodyflow.errors import ConfigError
from embodyflow.generation.interface import Request, Sampling
from embodyflow.generation.transformers_engine.engine import HFEngine


def test_a_long_completion_does_not_block_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two slots, the number of passes follows the number of tokens, not the longest completion of each pair."""
    engine = HFEngine(HFConfig(max_num_seqs=2), save_model(tmp_path, tied=True), "cpu")
    sampling = Sampling(24, stop_token_ids=tuple(range(0, len(VOCAB), 6)))
    requests = [Request((1, 2), seed) for seed in range(24)]
    lengths = [len(one.token_ids) for one in engine.generate(requests, sampling)]
    assert min(lengths) == 1 and max(lengths) == 24
    passes, prefill, decode = [], engine._prefill, engine._decoder
    monkeypatch.setattr(engine, "_prefill", lambda *a: passes.append(1) or prefill(*a))
    monkeypatch.setattr(engine, "_decoder", lambda *a: passes.append(1) or decode(*a))
    order = [position for position, _ in engine.stream(requests, sampling)]
    longest = lengths.index(max(lengths))
    assert order.index(longest) > longest and sorted(order) == list(range(24))
    # One prefill for each request after the first two, and steps of two rows, at the end of one row.
    assert len(passes) <= 23 + sum(lengths) / 2 + max(lengths) / 2
    in_pairs = sum(max(pair) for pair in zip(lengths[::2], lengths[1::2], strict=True))
    assert len(passes) - 23 < 0.75 * in_pairs


@pytest.mark.parametrize("drawn", [1, 23, 24, 25])
def test_draws_go_on_after_the_tokens_of_an_earlier_completion(tmp_path: Path, drawn: int) -> None:
    """Random numbers come in blocks of 24 tokens with this vocabulary."""
    engine = HFEngine(HFConfig(max_num_seqs=2), save_model(tmp_path, tied=True), "cpu")
    requests = [Request((1, 2, 3), seed) for seed in range(3)]
    begun, whole = engine.generate(requests, Sampling(drawn)), engine.generate(requests, Sampling(30))
    prompts = [(*request.prompt_ids, *one.token_ids) for request, one in zip(requests, begun, strict=True)]
    rest = [Request(prompt, seed, 30 - drawn, drawn) for seed, prompt in enumerate(prompts)]
    continued = engine.generate(rest, Sampling(30))
    for first, second, expected in zip(begun, continued, whole, strict=True):
        assert (*first.token_ids, *second.token_ids) == expected.token_ids
        np.testing.assert_allclose((*first.log_probs, *second.log_probs), expected.log_probs, atol=1e-5)


def test_draws_go_on_within_the_prompt_and_without_stop_strings(tmp_path: Path) -> None:
    engine = HFEngine(HFConfig(), save_model(tmp_path, tied=True), "cpu")
    for request, sampling in (
        (Request((1, 2), 0, drawn=2), Sampling(4)),
        (Request((1, 2), 0, drawn=1), Sampling(4, stop=("a",))),
    ):
        with pytest.raises(ValueError, match=rf"^request 0: drawn={request.drawn}: must be 0, or with the engine hf"):
            engine.generate([request], sampling)


def test_a_head_computes_one_row_for_each_prompt(tmp_path: Path) -> None:
    """Prompts of five lengths: five rows of logits, not five for each prompt."""
    engine, rows = HFEngine(HFConfig(), save_model(tmp_path, tied=True), "cpu"), []
    head = engine._model.get_output_embeddings()
    head.register_forward_hook(lambda module, inputs, outputs: rows.append(outputs.numel() // len(VOCAB)))
    requests = [Request(tuple(range(1, 2 + length)), length) for length in range(5)]
    together = engine.generate(requests, Sampling(1))
    assert rows == [5]
    assert [one.token_ids for one in together] == [
        engine.generate([each], Sampling(1))[0].token_ids for each in requests
    ]


LLAMA3 = {
    **{"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "original_max_position_embeddings": 16,
}
FAMILY: list[tuple[str, dict[str, Any]]] = [
    ("qwen3", {"head_dim": 16}),
    ("qwen2", {}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("llama", {"rope_parameters": LLAMA3}),
    ("mistral", {"sliding_window": None}),
]


def save_any(kind: str, folder: Path, **settings: Any) -> dict[str, np.ndarray]:
    """Write a model with random weights unlike transformers' initial ones; return the weights."""
    torch.manual_seed(0)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    sizes = {"vocab_size": len(VOCAB), "hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 64}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **heads, **sizes, **settings))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 1.0 if parameter.ndim == 1 else 0.0, 0.2)
    model.save_pretrained(folder)
    return {name: value.numpy() for name, value in model.state_dict().items()}


@pytest.mark.parametrize(("kind", "settings"), FAMILY, ids=["qwen3", "qwen2", "biases", "llama3", "mistral"])
def test_the_decoder_matches_transformers(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    weights = save_any(kind, tmp_path, **settings)
    engine = HFEngine(HFConfig(max_num_seqs=4), tmp_path, "cpu")
    assert engine._decoder is not None
    requests = [Request(tuple(range(1, 2 + seed % 3)), seed) for seed in range(6)]
    for version in range(2):  # new weights for the second pass, which the decoder must use too
        completions = engine.generate(requests, Sampling(12, stop_token_ids=(3,)))
        pairs = [(request.prompt_ids, one.token_ids) for request, one in zip(requests, completions, strict=True)]
        for one, scores in zip(completions, engine.score(pairs), strict=True):
            np.testing.assert_allclose(one.log_probs, scores, atol=1e-5)
        engine.update_weights({name: 0.9 * array for name, array in weights.items()}, version)


def test_other_models_decode_with_transformers(tmp_path: Path) -> None:
    save_any("gpt_neox", tmp_path)
    engine, request = HFEngine(HFConfig(), tmp_path, "cpu"), Request((1, 2), 0)
    assert engine._decoder is None
    [one] = engine.generate([request], Sampling(12))
    np.testing.assert_allclose(one.log_probs, engine.score([(request.prompt_ids, one.token_ids)])[0], atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("llama4_text", "layers of the kind chunked_attention; allowed are full_attention and sliding_attention"),
        ("qwen3_next", "layers of the kind linear_attention"),
        ("gpt_neo", "layers of the kind local"),
        ("gemma3n_text", "layers that share keys and values"),
    ],
)
def test_other_attention_is_refused(kind: str, reason: str, tmp_path: Path) -> None:
    AutoConfig.for_model(kind).save_pretrained(tmp_path)
    with pytest.raises(
        ConfigError, match=rf"rollout.generation.name=hf: {kind} has {reason}.* \(.*name=vllm"
    ) as caught:
        HFEngine(HFConfig(), tmp_path, "cpu")
    assert "\n" not in str(caught.value)
