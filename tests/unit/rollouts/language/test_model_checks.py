"""A model that trainer or engine cannot handle is refused in one line, before a process starts."""

import json
from pathlib import Path
from typing import Any

import pytest
from language_jobs import language_config
from transformers import AutoConfig, AutoModelForCausalLM, Gemma3Config

from embodyflow.errors import ConfigError
from embodyflow.policies.pretrained.checkpoints import outline

TOKENIZER = "policy.tokenizer=embodyflow.prompts.arithmetic:build_tokenizer"
EAGER = "policy.attn_implementation=eager"
VLLM = "(rollout.generation.name=vllm serves others)"


def words_for(folder: Path) -> tuple[str, ...]:
    return "policy.scratch=null", f"policy.path={folder}", TOKENIZER


def save_config(kind: str, folder: Path, **settings: Any) -> None:
    """Write the configuration of an architecture, and the header of its weights in front of a hole."""
    config = AutoConfig.for_model(kind, **settings)
    config.save_pretrained(folder)
    header, size = {}, 0
    if type(config) in AutoModelForCausalLM._model_mapping:
        with outline():
            model = AutoModelForCausalLM.from_config(config)
        for name, value in model.state_dict().items():
            header[name] = {
                "dtype": "U8",
                "shape": list(value.shape),
                "data_offsets": [size, size := size + value.numel()],
            }
    content = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(content).to_bytes(8, "little") + content)
        file.truncate(8 + len(content) + size)


@pytest.mark.parametrize(
    ("kind", "words", "answer"),
    [
        (
            "gemma2",
            (),
            "policy.attn_implementation=sdpa: does not compute the attention of gemma2 in full; allowed are",
        ),
        ("gpt_oss", (), "policy.attn_implementation=sdpa: does not compute the attention of gpt_oss in full; allowed"),
        ("qwen3_next", (), "{path}: qwen3_next has layers of the kind linear_attention, which the trainer cannot pack"),
        ("mamba", (), "{path}: mamba does not state its max_position_embeddings"),
        ("bloom", (), "{path}: bloom does not state its max_position_embeddings"),
        ("gpt_neo", (EAGER,), f"rollout.generation.name=hf: gpt_neo has layers of the kind local; .*{VLLM}"),
        ("gemma3n_text", (), f"rollout.generation.name=hf: gemma3n_text has layers that share keys and .*{VLLM}"),
        ("t5", (), "{path}: t5 is no causal language model of transformers"),
        ("gemma3_text", ("algorithm=ppo",), "algorithm.advantage=gae: needs a critic, and transformers has no token"),
    ],
)
def test_an_architecture_is_refused(kind: str, words: tuple[str, ...], answer: str, tmp_path: Path) -> None:
    save_config(kind, tmp_path)
    answer = "^" + answer.replace("(", r"\(").replace(")", r"\)").format(path=f"policy.path={tmp_path}")
    with pytest.raises(ConfigError, match=answer) as caught:
        language_config(*words_for(tmp_path), *words)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("key", "name"), [("path", "my model"), ("path", "{a}"), ("path", "a..b"), ("tokenizer", "no tokenizer")]
)
def test_what_cannot_be_a_name_on_the_hub_is_refused(key: str, name: str) -> None:
    words = ("policy.scratch=null", "policy.path='{a}'", TOKENIZER) if key == "path" else ()
    with pytest.raises(
        ConfigError, match=rf"^policy\.{key}=.*: is no folder, and no name on Hugging Face's hub, such as"
    ):
        language_config(*words, f"policy.{key}='{name}'")


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tmp_path: Path) -> None:
    for words in ("abcd", "abcde"):
        folder = tmp_path / words
        save_config("llama", folder, vocab_size=4)
        vocabulary = {"model": {"vocab": {word: place for place, word in enumerate(words)}}}
        (folder / "tokenizer.json").write_text(json.dumps(vocabulary))
    chosen = "policy.scratch=null", "policy.tokenizer=null"
    language_config(*chosen, f"policy.path={tmp_path}/abcd")
    with pytest.raises(ConfigError, match=r"^policy.path=.*: its tokenizer has 5 tokens, .* vocab_size=4; allowed is "):
        language_config(*chosen, f"policy.path={tmp_path}/abcde")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("gemma3_text", ()),
        ("gemma2", (EAGER,)),
        ("gpt_oss", (EAGER,)),
        ("phi3", ()),
        ("mistral", ()),
        ("gpt2", ()),
        ("phi3", ("algorithm=ppo",)),
    ],
)
def test_an_architecture_with_windows_is_accepted(kind: str, words: tuple[str, ...], tmp_path: Path) -> None:
    save_config(kind, tmp_path)
    assert language_config(*words_for(tmp_path), *words).policy.path == str(tmp_path)


def test_another_engine_may_serve_what_ours_cannot(tmp_path: Path) -> None:
    save_config("gpt_neo", tmp_path)
    engine = "rollout.generation={name:remote,base_url:'http://x',weight_update:reload_weights,weights_folder:/x}"
    words = ("~rollout.generation.max_num_seqs", engine, EAGER)
    assert language_config(*words_for(tmp_path), *words).rollout.generation.name == "remote"


def test_a_model_that_also_reads_images_is_refused(tmp_path: Path) -> None:
    Gemma3Config().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=rf"^policy.path={tmp_path}: gemma3 reads more than text; allowed are models"):
        language_config(*words_for(tmp_path))


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen33"}))
    with pytest.raises(
        ConfigError, match=rf"^policy.path={tmp_path}: transformers cannot read its config.json: "
    ) as it:
        language_config(*words_for(tmp_path))
    assert len(str(it.value).splitlines()) == 1


def test_sizes_of_a_random_model_are_checked_too() -> None:
    with pytest.raises(
        ConfigError, match=r"^policy.attn_implementation=sdpa: does not compute the attention of gemma2 in"
    ):
        language_config("policy.scratch.model_type=gemma2")
