"""Rows of several contexts: each context is computed as if it were alone."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from language_rows import CONTEXTS, Row, alone, batch_of

from embodyflow.policies.language.causal_lm.configuration_causal_lm import CausalLMConfig, ScratchConfig
from embodyflow.policies.language.causal_lm.critic_causal_lm import CausalLMCritic
from embodyflow.policies.language.causal_lm.packing_causal_lm import pack_rows
from embodyflow.policies.language.causal_lm.policy_causal_lm import CausalLMPolicy
from embodyflow.policies.language.causal_lm.sequences_causal_lm import sequences_of
from embodyflow.policies.language.causal_lm.shared_prompts_causal_lm import is_used_in, pack_shared
from embodyflow.training.steps.micro_batches import micro_batches

TOKENIZER = "embodyflow.prompts.arithmetic:build_tokenizer"
SIZES: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 8}


def log_prob(policy: CausalLMPolicy, tokens: torch.Tensor) -> torch.Tensor:
    logits = policy.model(input_ids=tokens[None, :-1]).logits[0, -1]
    return torch.log_softmax(logits / 0.7, -1)[tokens[-1]]


def config_of(model_type: str, attention: str) -> CausalLMConfig:
    scratch = ScratchConfig(model_type=model_type, **SIZES)
    return CausalLMConfig(scratch=scratch, tokenizer=TOKENIZER, attn_implementation=attention)


@pytest.mark.parametrize(("model_type", "attention"), [("qwen3", "sdpa"), ("qwen3", "eager"), ("olmo2", "sdpa")])
def test_each_context_is_computed_as_if_it_were_alone(model_type: str, attention: str) -> None:
    torch.manual_seed(0)
    policy, batch = CausalLMPolicy(config_of(model_type, attention), "cpu"), batch_of(CONTEXTS)
    assert is_used_in(policy.model) == (attention == "sdpa" and model_type == "qwen3")
    gradients = []
    log_probs, expected = policy.evaluate(batch, 0.7)[0], alone(batch, lambda tokens: log_prob(policy, tokens))

    torch.testing.assert_close(log_probs, expected, atol=1e-5, rtol=0)
    for numbers in (log_probs, expected):
        policy.model.zero_grad()
        numbers.sum().backward()
        gradients.append(
            torch.cat([each.grad.flatten() for each in policy.model.parameters() if each.grad is not None])
        )
    assert torch.norm(gradients[0] - gradients[1]) <= 1e-5 * torch.norm(gradients[1])


def test_the_critic_values_what_a_context_has_seen() -> None:
    torch.manual_seed(0)
    critic, batch = CausalLMCritic(config_of("qwen3", "sdpa"), "cpu"), batch_of(CONTEXTS)
    torch.nn.init.ones_(critic.model.score.weight)
    with torch.no_grad():
        values = critic.evaluate(batch)[..., None]
        expected = alone(batch, lambda tokens: critic.model(input_ids=tokens[None, :-1]).logits[0, -1, 0])
    torch.testing.assert_close(values[batch["loss_mask"]], expected[batch["loss_mask"]], atol=1e-5, rtol=0)


def test_contexts_share_their_beginnings() -> None:
    packed = pack_shared(batch_of(CONTEXTS[:1]), "cpu")
    # Prompt 3; context 0: 7 8 9 10 11; context 1 repeats the prompt: 8 9 15 16; context 2: 12 13 14 5.
    assert packed.input_ids.shape == (1, 3 + 5 + 4 + 4)
    assert packed.targets.tolist() == [7, 8, 9, 10, 11, 7, *(5, 6, 8, 9, 15, 16, 4), *(13, 14, 5, 6)]


rows_of_contexts = st.lists(
    st.tuples(
        st.lists(st.integers(4, 6), min_size=1, max_size=4),
        st.lists(
            st.tuples(
                st.integers(0, 2),
                st.lists(st.integers(4, 6), min_size=1, max_size=4),
                st.lists(st.integers(4, 6), min_size=1, max_size=3),
            ),
            min_size=1,
            max_size=5,
        ),
    ),
    max_size=4,
)


@settings(max_examples=40)
@given(rows_of_contexts)
def test_attention_sees_exactly_the_tokens_of_the_context(rows: list[Row]) -> None:
    dense = []
    for prompt, turns in rows:
        numbers = {context: number for number, context in enumerate(sorted({0, *(turn[0] for turn in turns)}))}
        dense.append((prompt, [(numbers[context], given, own) for context, given, own in turns]))
    batch = batch_of(dense)
    packed = pack_shared(batch, "cpu")
    lines, ids, positions = packed.attention_lines, packed.input_ids[0], packed.position_ids[0]
    assert lines is not None and torch.equal(lines.tokens.flatten()[lines.places], torch.arange(len(ids)))
    computed = set(zip(packed.rows.tolist(), packed.steps.tolist(), strict=True))
    assert computed >= set(map(tuple, batch["loss_mask"][..., 0].nonzero().tolist()))
    for row, step, token in zip(packed.rows.tolist(), packed.steps.tolist(), packed.positions.tolist(), strict=True):
        number, place = divmod(int(lines.places[token]), lines.tokens.shape[1])
        seen = lines.tokens[number, : place + 1]
        if lines.mask is not None:
            seen = seen[lines.mask[number, 0, place, : place + 1]]
        tokens, contexts = batch["action_tokens"][row, :, 0], batch["token_context"][row, :, 0]
        before = tokens[:step][contexts[:step] == contexts[step]].tolist()
        prompt = dense[row][0] if contexts[step] == 0 else []
        assert ids[seen].tolist() == [*prompt, *before] and positions[seen].tolist() == list(range(len(seen)))


def test_flash_attention_finds_each_context_in_the_positions() -> None:
    batch = batch_of(CONTEXTS)
    packed = pack_rows(batch, "cpu", "flash_attention_2")
    starts = [*(packed.position_ids[0] == 0).nonzero().flatten().tolist(), packed.position_ids.shape[1]]
    found = [packed.input_ids[0, start:end].tolist() for start, end in pairwise(starts)]
    assert found == [sequence.inputs.tolist() for sequence in sequences_of(batch)] and len(found) == 3 + 1 + 2 + 2


def test_micro_batches_count_the_tokens_that_the_model_did_not_write(monkeypatch: pytest.MonkeyPatch) -> None:
    class OneRank:
        def largest(self, number: int) -> int:
            return number

    class Limits:
        micro_batch_tokens = 30  # the row has 3 + 19 tokens, of which the model wrote 9

    cuts = micro_batches(batch_of(CONTEXTS[:1] * 2), Limits(), OneRank())  # type: ignore[arg-type]
    assert [(cut.start, cut.stop) for cut in cuts] == [(0, 1), (1, 2)]
