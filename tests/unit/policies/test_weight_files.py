"""Local checkpoints that are missing something or cut short are refused in one line, from their headers."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from embodyflow.config.composition.compose import compose_config
from embodyflow.errors import ConfigError
from embodyflow.policies.pretrained.weight_files import check_weights, read_object, why_unreadable

SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 99}
WHOLE = {"first": np.arange(6, dtype=np.float32), "second": np.ones((2, 3), np.float32)}


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def test_a_file_is_whole_with_every_byte_and_unreadable_without_any_of_the_last(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file(WHOLE, file)
    content = file.read_bytes()
    assert why_unreadable(file) is None
    for size in (0, 4, 8, 20, len(content) - 24, len(content) - 1):
        file.write_bytes(content[:size])
        assert why_unreadable(file) is not None
    assert why_unreadable(file) == "is cut short: 1 of its bytes are missing"
    for header in (b"{}", b"[]", b'{"a": 1}', b'{"a": {"data_offsets": []}}', b"\xff\xff"):
        file.write_bytes(len(header).to_bytes(8, "little") + header)
        assert (why_unreadable(file) is None) == (header == b"{}")


SHARDS = {
    "missing": ({"a": "one.safetensors", "b": "two.safetensors"}, "two.safetensors is missing"),
    "no map": ({}, "is damaged: it has no weight_map"),
    "no names": ({"a": 1}, "is damaged: it has no weight_map"),
}


@pytest.mark.parametrize(("weights", "message"), SHARDS.values(), ids=SHARDS)
def test_every_shard_of_an_index_must_be_there(weights: dict[str, object], message: str, tmp_path: Path) -> None:
    save_file(WHOLE, tmp_path / "one.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    with pytest.raises(ConfigError, match=f"^policy.path=x: .*{message}"):
        check_weights(tmp_path, "policy.path=x")


def test_an_object_is_read_and_anything_else_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"a": 1}')
    assert read_object(file, "policy.path=x") == {"a": 1}
    for content in (b"{", b"[1]", b"\xff", b""):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match=r"^policy.path=x: config.json is damaged"):
            read_object(file, "policy.path=x")


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "has no weights; allowed are folders with"),
    "cut": (lambda folder: cut(folder / "model.safetensors", 100), "model.safetensors is"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer, such as tokenizer.json; "),
    "damaged": (lambda folder: (folder / "config.json").write_text("{"), "config.json is damaged"),
    "another model's": (
        lambda folder: None,
        "lacks 15 of the weights of a Qwen2ForCausalLM, such as lm_head.weight, which",
    ),
}


@pytest.mark.parametrize(("spoil", "message"), SPOILT.values(), ids=SPOILT)
def test_a_language_model_that_cannot_be_loaded_is_refused(
    spoil: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2", **SIZES}))
    (tmp_path / "tokenizer.json").write_text("{}")
    save_file(WHOLE, tmp_path / "model.safetensors")
    spoil(tmp_path)
    words = ["experiment=gsm8k", "policy=causal_lm", f"policy.path={tmp_path}", "data=arithmetic", "reward=exact_match"]
    with pytest.raises(ConfigError) as refusal:
        compose_config(words)
    assert str(refusal.value).startswith(f"policy.path={tmp_path}: {message}")
    assert len(str(refusal.value).splitlines()) == 1
