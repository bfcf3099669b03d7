"""Models whose layers attend to a window generate as they do in transformers, beyond their windows too."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from language_models import VOCAB
from local_models import MODELS, WINDOW, load_local, save_local
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from embodyflow.config.generation import HFConfig
from embodyflow.errors import ConfigError
from embodyflow.generation.interface import Request, Sampling
from embodyflow.generation.transformers_engine.engine import HFEngine
from embodyflow.policies.pretrained.whole_models import check_whole

PARITY = 1e-5
DECODED = ("mistral", "qwen2", "qwen3")
"""Architectures that keep conversations."""
LENGTHS = (1, 3, WINDOW, WINDOW + 1, 17, 17)
"""Tokens of the prompts, of which the last two are equal."""


@pytest.fixture(scope="module", params=MODELS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_local(kind, tmp_path_factory.mktemp(kind))


@pytest.fixture(scope="module")
def engine(folder: Path) -> HFEngine:
    return HFEngine(HFConfig(max_num_seqs=4), folder, "cpu")


def requests() -> list[Request]:
    tokens = np.random.default_rng(1).integers(1, len(VOCAB), size=max(LENGTHS)).tolist()
    return [Request(tuple(tokens[-length:]), seed) for seed, length in enumerate(LENGTHS)]


@torch.no_grad()
def log_probs(model: Any, prompt: tuple[int, ...], response: tuple[int, ...]) -> np.ndarray:
    logits = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(-1, torch.tensor(response)[:, None])[:, 0].numpy()


def test_greedy_tokens_are_those_of_transformers(kind: str, folder: Path, engine: HFEngine) -> None:
    model = load_local(kind, folder)
    for one, request in zip(engine.generate(requests(), Sampling(20, temperature=0)), requests(), strict=True):
        prompt = torch.tensor([request.prompt_ids])
        whole = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=20, min_new_tokens=20,
            eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        assert one.token_ids == tuple(whole[0, len(request.prompt_ids) :].tolist())


def test_log_probs_are_those_of_transformers(kind: str, folder: Path, engine: HFEngine) -> None:
    model = load_local(kind, folder)
    completions = engine.generate(requests(), Sampling(20))
    assert len({one.token_ids for one in completions}) == len(LENGTHS)  # not degenerate
    pairs = [(request.prompt_ids, one.token_ids) for request, one in zip(requests(), completions, strict=True)]
    for pair, one, scores in zip(pairs, completions, engine.score(pairs), strict=True):
        np.testing.assert_allclose(one.log_probs, log_probs(model, *pair), atol=PARITY)
        np.testing.assert_allclose(scores, log_probs(model, *pair), atol=PARITY)


def test_tokens_outside_all_windows_do_not_matter(kind: str, folder: Path) -> None:
    """With windows in both layers, a token sees no further back than two windows; with a full layer it does."""
    engine = HFEngine(HFConfig(), folder, "cpu")
    far, near = (1, 2, 3), tuple(range(4, 4 + 2 * WINDOW - 1))
    [one, other] = engine.score([((*far, *near), (9,)), ((*reversed(far), *near), (9,))])
    assert (one == other) == (kind in ("mistral", "phi3"))


def test_the_headers_of_the_folder_are_those_of_the_model(kind: str, folder: Path, tmp_path: Path) -> None:
    check_whole(AutoModelForCausalLM, folder, "x")
    spoiled = shutil.copytree(folder, tmp_path / kind)
    file = spoiled / "model.safetensors"
    state = load_file(file)
    lost = next(name for name in sorted(state) if "down_proj" in name)
    save_file({name: value for name, value in state.items() if name != lost}, file, {"format": "pt"})
    with pytest.raises(ConfigError, match=r"^x: lacks 1 of the weights of a "):
        check_whole(AutoModelForCausalLM, spoiled, "x")


def test_architectures_of_the_decoder_are_batch_invariant(kind: str, engine: HFEngine) -> None:
    assert engine.is_batch_invariant() == (kind in DECODED)


@pytest.mark.parametrize("kind", DECODED, indirect=True, scope="module")
def test_turns_of_conversations_are_those_of_transformers(kind: str, folder: Path, engine: HFEngine) -> None:
    """Keys and values stay between turns, and a conversation may begin with another's prompt."""
    model = load_local(kind, folder)
    with engine.converse(2, Sampling(8)) as conversations:
        for conversation in range(2):
            prompt = requests()[-1].prompt_ids
            for turn in range(3):
                conversations.ask(conversation, Request(prompt, conversation))
                while conversations.num_open:
                    ended = dict(conversations.step())
                answer = ended[conversation]
                np.testing.assert_allclose(
                    answer.log_probs, log_probs(model, prompt, answer.token_ids), atol=PARITY, err_msg=str(turn)
                )
                prompt = (*prompt, *answer.token_ids, 7, 8)
    assert conversations.counts.copied == len(requests()[-1].prompt_ids) - 1
