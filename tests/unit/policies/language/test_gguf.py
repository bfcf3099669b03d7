"""A GGUF file as a policy: converted once, with the weights and the begin of a sequence that it has."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("gguf")

from gguf_files import BEGIN, WINDOW, build_model, write_gguf
from huggingface_hub import constants

from embodyflow.config.generation import HFConfig
from embodyflow.errors import ConfigError
from embodyflow.generation.interface import Request, Sampling
from embodyflow.generation.transformers_engine.engine import HFEngine
from embodyflow.policies.language.causal_lm import gguf_causal_lm
from embodyflow.policies.language.causal_lm.configuration_causal_lm import CausalLMConfig
from embodyflow.policies.language.causal_lm.modeling_causal_lm import folder_of
from embodyflow.policies.language.causal_lm.policy_causal_lm import CausalLMPolicy

TOKENS = torch.arange(4, 4 + 5 * WINDOW)[None]


@pytest.fixture(scope="module")
def model() -> Any:
    return build_model()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_file_is_a_policy(model: Any, tmp_path: Path) -> None:
    file = write_gguf(model, tmp_path / "model.gguf")
    policy = CausalLMPolicy(CausalLMConfig(path=str(file)), "cpu")
    with torch.no_grad():
        torch.testing.assert_close(policy.model(input_ids=TOKENS).logits, model(input_ids=TOKENS).logits)
    assert policy.tokenizer("ab 1")["input_ids"][0] == BEGIN
    assert policy.tokenizer.decode(policy.tokenizer("ab 1")["input_ids"], skip_special_tokens=True) == "ab 1"
    assert (policy.tokenizer.eos_token_id, policy.tokenizer.pad_token_id) == (1, 0)


def test_weights_read_later_are_those_of_the_file(model: Any, tmp_path: Path) -> None:
    file = write_gguf(model, tmp_path / "model.gguf")
    policy = CausalLMPolicy(CausalLMConfig(path=str(file)), "cpu", reads_later=True)
    policy.read()
    with torch.no_grad():
        torch.testing.assert_close(policy.model(input_ids=TOKENS).logits, model(input_ids=TOKENS).logits)


def test_an_engine_generates_with_the_folder_of_a_file(model: Any, tmp_path: Path) -> None:
    file = write_gguf(model, tmp_path / "model.gguf")
    engine = HFEngine(HFConfig(), folder_of(str(file)), "cpu")
    prompt = tuple(range(4, 4 + 2 * WINDOW))
    [one] = engine.generate([Request(prompt, 0)], Sampling(12))
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *one.token_ids]])).logits[0, len(prompt) - 1 : -1]
    expected = logits.log_softmax(-1).gather(-1, torch.tensor(one.token_ids)[:, None])[:, 0]
    np.testing.assert_allclose(one.log_probs, expected, atol=1e-5)


def test_rounded_weights_are_dequantised(model: Any, tmp_path: Path) -> None:
    file = write_gguf(model, tmp_path / "model.gguf", quantised="q_proj.weight")
    policy = CausalLMPolicy(CausalLMConfig(path=str(file)), "cpu")
    own, stored = policy.model.state_dict(), model.state_dict()
    assert own.keys() == stored.keys()
    for name, value in own.items():
        tolerance = 0.02 if name.endswith("q_proj.weight") else 0.0
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, stored[name], atol=tolerance, rtol=1e-6)
        assert torch.equal(value, stored[name]) != name.endswith("q_proj.weight") or "norm" in name


@pytest.mark.parametrize(("wish", "begins"), [(True, True), (None, True), (False, False)])
def test_texts_begin_as_the_file_asks_for(
    wish: bool | None, begins: bool, model: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = write_gguf(model, tmp_path / "model.gguf", add_begin=wish)
    with caplog.at_level(logging.WARNING):
        policy = CausalLMPolicy(CausalLMConfig(path=str(file)), "cpu")
    assert (policy.tokenizer("ab")["input_ids"][0] == BEGIN) == begins
    assert ("the tokenizer now begins each text with <bos>" in caplog.text) == begins


def test_a_file_is_converted_once_until_it_changes(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    converted, convert = [], gguf_causal_lm._convert
    monkeypatch.setattr(gguf_causal_lm, "_convert", lambda *given: converted.append(1) or convert(*given))
    file = str(write_gguf(model, tmp_path / "model.gguf"))
    assert folder_of(file) == folder_of(file) and len(converted) == 1
    first = folder_of(file)
    write_gguf(model, tmp_path / "model.gguf", quantised="q_proj.weight")
    assert folder_of(file) != first and len(converted) == 2


def test_a_conversion_that_fails_leaves_no_folder(model: Any, tmp_path: Path, cache: Path) -> None:
    file = write_gguf(model, tmp_path / "model.gguf")
    file.write_bytes(file.read_bytes()[:2000])
    for _ in range(2):
        with pytest.raises(
            ConfigError, match=rf"^policy.path={file}: transformers cannot read this file: .*"
        ) as caught:
            folder_of(str(file))
        assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(ConfigError, match=r"^policy.path=/no/model.gguf: there is no such file$"):
        folder_of("/no/model.gguf")
    assert not list(cache.rglob("config.json"))


def test_a_file_without_one_of_the_weights_is_refused(model: Any, tmp_path: Path, cache: Path) -> None:
    file = write_gguf(model, tmp_path / "model.gguf")
    content = file.read_bytes()
    assert content.count(b"blk.3.ffn_up.weight") == 1
    file.write_bytes(content.replace(b"blk.3.ffn_up.weight", b"blk.3.ffn_xx.weight"))
    with pytest.raises(
        ConfigError, match=rf"^policy.path={file}: lacks 1 of the weights of a Gemma3ForCausalLM, such as "
    ):
        folder_of(str(file))
    assert [path.suffix for path in (cache / "embodyflow-gguf").iterdir() if path.is_dir()] in ([], [".unfinished"])
