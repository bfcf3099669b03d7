"""Language models as policies: packed rows against rows alone, and folders that transformers loads."""

import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub.utils import filter_repo_objects
from hypothesis import given
from hypothesis import strategies as st
from language_models import save_model
from language_rows import GROUPED, GROUPS, LENGTHS, one_by_one, rows, siblings
from safetensors.torch import load_file, save_file
from tensordict import TensorDict
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_flash_attention_utils import _is_packed_sequence, prepare_fa_kwargs_from_position_ids
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from embodyflow.config.generation import HFConfig
from embodyflow.generation.interface import Request, Sampling
from embodyflow.generation.transformers_engine.engine import HFEngine
from embodyflow.policies.language.causal_lm import modeling_causal_lm, shared_prompts_causal_lm
from embodyflow.policies.language.causal_lm.configuration_causal_lm import CausalLMConfig, ScratchConfig
from embodyflow.policies.language.causal_lm.critic_causal_lm import CausalLMCritic
from embodyflow.policies.language.causal_lm.modeling_causal_lm import build_empty_model, save_folder
from embodyflow.policies.language.causal_lm.packing_causal_lm import AttentionLines, first_fit, pack_rows
from embodyflow.policies.language.causal_lm.policy_causal_lm import CausalLMPolicy
from embodyflow.policies.language.causal_lm.shared_prompts_causal_lm import is_used_in, pack_shared

TOKENIZER = "embodyflow.prompts.arithmetic:build_tokenizer"
SIZES: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 8}


def config_of(model_type: str = "qwen3", **changes: Any) -> CausalLMConfig:
    return CausalLMConfig(scratch=ScratchConfig(model_type=model_type, **SIZES), tokenizer=TOKENIZER, **changes)


@pytest.fixture(scope="module")
def policy() -> CausalLMPolicy:
    torch.manual_seed(0)
    return CausalLMPolicy(config_of(), "cpu")


def test_an_engine_loads_a_model_of_the_hub_from_its_folder_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, cache = save_model(tmp_path / "repository", tied=True), tmp_path / "cache"
    (repository / "pytorch_model.bin").write_text("the same weights again")

    def download(name: str, allow_patterns: Any) -> str:
        assert name == "owner/name"
        wanted = filter_repo_objects([file.name for file in repository.iterdir()], allow_patterns=allow_patterns)
        cache.mkdir()
        for file in wanted:
            shutil.copy(repository / file, cache)
        return str(cache)

    monkeypatch.setattr(modeling_causal_lm, "snapshot_download", download)
    engine = HFEngine(HFConfig(), modeling_causal_lm.folder_of("owner/name"), "cpu")
    [whole] = engine.generate([Request((1, 2), 0)], Sampling(4))
    text = AutoTokenizer.from_pretrained(repository).decode(whole.token_ids[:1])
    [stopped] = engine.generate([Request((1, 2), 0)], Sampling(4, stop=(text,)))
    assert (len(whole.token_ids), len(stopped.token_ids)) == (4, 1)
    assert not (cache / "pytorch_model.bin").exists()


@pytest.mark.parametrize(
    ("model_type", "attention"), [("qwen3", "eager"), ("olmo2", "sdpa"), ("gpt_neox", "sdpa"), ("mistral", "eager")]
)
def test_packed_rows_equal_rows_alone(model_type: str, attention: str) -> None:
    torch.manual_seed(0)
    policy, batch = CausalLMPolicy(config_of(model_type, attn_implementation=attention), "cpu"), rows(LENGTHS)
    assert not is_used_in(policy.model)
    packed = pack_rows(batch, "cpu", attention)
    # 111 tokens, which padding to the longest row would make 252; no last token of a row is an input.
    assert packed.input_ids.shape == (4, 36)
    for mine, expected in zip(policy.evaluate(batch, 0.7), one_by_one(policy.model, batch, 0.7), strict=True):
        assert mine.shape == (7, 30, 1) and mine.dtype == torch.float32
        torch.testing.assert_close(mine, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("model_type", ["qwen3", "qwen2", "llama"])
def test_siblings_share_their_prompt_and_equal_rows_alone(model_type: str) -> None:
    torch.manual_seed(0)
    policy, batch = CausalLMPolicy(config_of(model_type), "cpu"), siblings(GROUPS, GROUPED)
    packed = pack_shared(batch, "cpu")
    # Four prompts of 24 tokens in all, and each response without its last token: no padding.
    assert packed.input_ids.shape == (1, 7 + 5 + 9 + 3 + 83 - 7)
    for mine, expected in zip(policy.evaluate(batch, 0.7), one_by_one(policy.model, batch, 0.7), strict=True):
        torch.testing.assert_close(mine, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("has_mask", [True, False])
def test_heads_are_shared_on_a_gpu_only_if_a_fused_kernel_supports_it(
    monkeypatch: pytest.MonkeyPatch, has_mask: bool
) -> None:
    """Compare shapes on the meta device: with a mask, every head has keys and values."""
    seen = []

    def attention(query: Any, key: Any, value: Any, *, attn_mask: Any, enable_gqa: bool, **arguments: Any) -> Any:
        seen.append((key.shape[1], value.shape[1], attn_mask is not None, enable_gqa))
        return query

    monkeypatch.setattr(shared_prompts_causal_lm, "scaled_dot_product_attention", attention)
    line = torch.empty(1, 8, 6, 4, device="meta"), *torch.empty(2, 1, 2, 6, 4, device="meta")
    tokens = torch.zeros(2, 3, dtype=torch.int64, device="meta")
    mask = torch.ones(2, 1, 3, 3, dtype=torch.bool, device="meta") if has_mask else None
    lines = AttentionLines(tokens, tokens.flatten(), mask)
    outputs, _ = shared_prompts_causal_lm.attend(None, *line, None, attention_lines=lines)
    assert outputs.shape == (1, 6, 8, 4)
    assert seen == [(8, 8, True, False) if has_mask else (2, 2, False, True)]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(0, 20)), max_size=12))
def test_attention_sees_exactly_the_sequence_of_each_token(each: list[tuple[int, int, int]]) -> None:
    groups, *lengths = zip(*each, strict=True) if each else ((), (), ())
    batch = rows(list(zip(*lengths, strict=True)))
    prompts = np.random.default_rng(1).integers(4, 19, (4, batch["prompt_tokens"].shape[1]))
    batch["prompt_tokens"] = torch.from_numpy(prompts[list(groups)])
    packed = pack_shared(batch, "cpu")
    lines, ids, positions = packed.attention_lines, packed.input_ids[0], packed.position_ids[0]
    assert lines is not None
    assert torch.equal(lines.tokens.flatten()[lines.places], torch.arange(len(ids)))
    for row in range(len(batch)):
        prompt = batch["prompt_tokens"][row, : batch["prompt_length"][row]].tolist()
        response = batch["action_tokens"][row, : batch["response_length"][row], 0].tolist()
        of_row = packed.rows == row
        assert packed.targets[of_row].tolist() == response
        for step, token in enumerate(packed.positions[of_row].tolist()):
            # The token's place in a line attends to the prompt and the response before the token.
            number, place = divmod(int(lines.places[token]), lines.tokens.shape[1])
            seen = lines.tokens[number, : place + 1]
            if lines.mask is not None:
                seen = seen[lines.mask[number, 0, place, : place + 1]]
            assert ids[seen].tolist() == [*prompt, *response[:step]]
            assert positions[seen].tolist() == list(range(len(seen)))


def flash_attention(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **arguments: Any) -> Any:
    """Attend as flash-attn does in transformers, by sequences that it finds in the positions and without a mask."""
    assert attention_mask is None
    batch_size, position_ids, ends = len(query), arguments["position_ids"], [query.shape[2]]
    if _is_packed_sequence(position_ids, batch_size):
        (starts, _), _ = prepare_fa_kwargs_from_position_ids(position_ids)
        ends = starts[1:].tolist()
    sequences = [[each[:, :, start:end] for each in (query, key, value)] for start, end in pairwise([0, *ends])]
    mixed = [scaled_dot_product_attention(*each, is_causal=True, enable_gqa=True) for each in sequences]
    return torch.cat(mixed, dim=2).transpose(1, 2), None


@pytest.mark.parametrize("lengths", [LENGTHS, LENGTHS[:1], LENGTHS[:2] * 2], ids=["many rows", "one row", "twice two"])
def test_rows_do_not_attend_to_each_other_by_flash_attention(
    lengths: list[tuple[int, int]], policy: CausalLMPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = rows(lengths)
    expected = one_by_one(policy.model, batch, 0.7)
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "flash_attention_2", flash_attention)
    monkeypatch.setattr(policy.model.config, "_attn_implementation_internal", "flash_attention_2")
    monkeypatch.setattr(policy, "config", config_of(attn_implementation="flash_attention_2"))
    for mine, theirs in zip(policy.evaluate(batch, 0.7), expected, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=0)
    assert policy.evaluate(batch[:0], 0.7)[0].shape == (0, *batch["loss_mask"].shape[1:])


@pytest.mark.parametrize("batch", [rows(LENGTHS), siblings(GROUPS, GROUPED)], ids=["strangers", "siblings"])
@pytest.mark.parametrize("model_type", ["qwen3", "llama", "olmo2"])
def test_the_gradient_of_packed_rows_is_the_sum_of_the_rows_gradients(model_type: str, batch: TensorDict) -> None:
    torch.manual_seed(0)
    policy, gradients = CausalLMPolicy(config_of(model_type), "cpu"), []
    for evaluate in (policy.evaluate, lambda rows, temperature: one_by_one(policy.model, rows, temperature)):
        policy.model.zero_grad()
        log_probs, entropy = evaluate(batch, 1.0)
        (log_probs + 0.1 * entropy).sum().backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in policy.model.parameters()]))
    assert torch.norm(gradients[0] - gradients[1]) <= 1e-5 * torch.norm(gradients[1])


@given(st.lists(st.integers(1, 60), max_size=40))
def test_every_sequence_is_in_one_line_as_long_as_the_longest_sequence(lengths: list[int]) -> None:
    lines = first_fit(lengths)
    assert sorted(index for line in lines for index in line) == list(range(len(lengths)))
    totals = [sum(lengths[index] for index in line) for line in lines]
    assert all(total <= max(lengths) for total in totals)
    # At most one line is at most half full: two of them would share a line.
    assert sum(2 * total <= max(lengths) for total in totals) <= 1


def test_a_batch_without_rows_takes_part_in_forward_and_backward(policy: CausalLMPolicy) -> None:
    log_probs, entropy = policy.evaluate(rows(LENGTHS)[:0], 1.0)
    assert log_probs.shape == entropy.shape == (0, 30, 1)
    (log_probs.sum() + entropy.sum()).backward()


def test_transformers_loads_an_exported_folder_with_its_tokenizer(policy: CausalLMPolicy, tmp_path: Path) -> None:
    changed = {name: value.detach().numpy() + 1.0 for name, value in policy.model.state_dict().items()}
    policy.export(changed, tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    assert loaded.keys() == changed.keys()
    assert all(np.array_equal(loaded[name].numpy(), changed[name]) for name in changed)
    assert AutoTokenizer.from_pretrained(tmp_path)("27+95=")["input_ids"] == policy.tokenizer("27+95=")["input_ids"]
    assert "embodyflow" not in (tmp_path / "config.json").read_text()
    again = CausalLMPolicy(CausalLMConfig(path=str(tmp_path)), "cpu").model.state_dict()
    assert all(np.array_equal(again[name].numpy(), changed[name]) for name in changed)


def test_weights_read_later_equal_those_loaded_at_once(policy: CausalLMPolicy, tmp_path: Path) -> None:
    save_folder(policy.model, policy.tokenizer, tmp_path)
    later, batch = CausalLMPolicy(CausalLMConfig(path=str(tmp_path)), "cpu", reads_later=True), rows(LENGTHS)
    assert all(value.is_meta for value in later.model.parameters())
    later.read()
    assert later.model.lm_head.weight is later.model.model.embed_tokens.weight
    for mine, expected in zip(later.evaluate(batch, 1.0), policy.evaluate(batch, 1.0), strict=True):
        assert torch.equal(mine, expected)


@pytest.mark.parametrize("fault", ["another name", "another shape"])
def test_transformers_loads_checkpoints_in_another_form(policy: CausalLMPolicy, fault: str, tmp_path: Path) -> None:
    save_folder(policy.model, policy.tokenizer, tmp_path)
    tensors = load_file(file := tmp_path / "model.safetensors")
    norm = tensors.pop("model.norm.weight")
    save_file(tensors | ({"norm": norm} if fault == "another name" else {"model.norm.weight": norm[:-1]}), file)
    assert build_empty_model(CausalLMConfig(path=str(tmp_path)), policy.tokenizer) is None


def test_the_critic_starts_at_zero_with_the_policys_weights(policy: CausalLMPolicy) -> None:
    critic, batch = CausalLMCritic(config_of(), "cpu"), siblings(GROUPS, GROUPED)
    critic.start_from(policy.model.state_dict())
    values = critic.evaluate(batch)
    assert values.shape == (7, 30) and values.dtype == torch.float32 and not values.any()
    body = {name: value for name, value in policy.model.state_dict().items() if not name.startswith("lm_head")}
    assert all(torch.equal(critic.model.state_dict()[name], value) for name, value in body.items())
    torch.nn.init.ones_(critic.model.score.weight)
    values = critic.evaluate(batch)
    alone = torch.stack([critic.evaluate(batch[row : row + 1])[0] for row in range(7)])
    torch.testing.assert_close(values, alone, atol=1e-5, rtol=0)
    assert torch.equal(values != 0, batch["loss_mask"][..., 0])
    assert critic.evaluate(batch[:0]).shape == (0, 30)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "exactly one of path and scratch"),
        ({"path": "a", "scratch": {}}, "exactly one of path and scratch"),
        ({"scratch": {}}, "scratch needs a tokenizer"),
        ({"scratch": {}, "tokenizer": "embodyflow.nowhere:f"}, "tokenizer=embodyflow.nowhere:f: cannot import"),
    ],
)
def test_a_model_has_one_source(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CausalLMConfig(**values)
