"""Conversations of the transformers engine: bits depend on a conversation's own tokens alone."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from language_models import VOCAB, save_model

from embodyflow.config.generation import HFConfig
from embodyflow.generation.conversations import places, row_passes
from embodyflow.generation.conversations.invariant_passes import WIDTHS
from embodyflow.generation.conversations.key_values import KeyValues
from embodyflow.generation.conversations.row_passes import linear_of_any_size
from embodyflow.generation.interface import Completion, Conversations, GenerationError, Request, Sampling
from embodyflow.generation.transformers_engine.engine import HFEngine

SAMPLING = Sampling(8, stop_token_ids=(3, 4))
PROMPT = tuple(range(5, 17))


@pytest.fixture(scope="module", autouse=True)
def short_blocks() -> Iterator[None]:
    """A block is a quarter of the model's positions, so that conversations take several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(places, "BLOCK", 16)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"), tied=True)


@pytest.fixture(scope="module")
def engine(folder: Path) -> HFEngine:
    return HFEngine(HFConfig(max_num_seqs=4), folder, "cpu")


@pytest.fixture(scope="module")
def local_engine(tmp_path_factory: pytest.TempPathFactory) -> HFEngine:
    """The second of two layers attends to five positions."""
    settings = {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": 5}
    return HFEngine(
        HFConfig(max_num_seqs=4), save_model(tmp_path_factory.mktemp("local"), tied=True, **settings), "cpu"
    )


def request(conversation: int, turn: int, before: tuple[int, ...] = ()) -> Request:
    """Ask for a turn after messages of lengths that differ between conversations and turns."""
    rng = np.random.default_rng((conversation // 2, turn))  # two conversations share a prompt
    return Request((*before, *rng.integers(5, len(VOCAB), size=rng.integers(1, 9)).tolist()), conversation * 10 + turn)


def finish(conversations: Conversations) -> dict[int, Completion]:
    ended: dict[int, Completion] = {}
    while conversations.num_open:
        ended |= conversations.step()
    return ended


def play_alone(engine: HFEngine, conversation: int, num_turns: int) -> list[Completion]:
    with engine.converse(1, SAMPLING) as conversations:
        turns: list[Completion] = []
        before: tuple[int, ...] = ()
        for turn in range(num_turns):
            asked = request(conversation, turn, before)
            conversations.ask(0, asked)
            turns.append(finish(conversations)[0])
            before = (*asked.prompt_ids, *turns[-1].token_ids)
    return turns


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.integers(1, 3), min_size=1, max_size=7))
def test_a_turn_has_the_same_bits_whenever_it_is_asked_for(engine: HFEngine, seed: int, lengths: list[int]) -> None:
    check_bits(engine, seed, lengths)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.integers(1, 3), min_size=1, max_size=7))
def test_a_turn_has_the_same_bits_with_windows(local_engine: HFEngine, seed: int, lengths: list[int]) -> None:
    check_bits(local_engine, seed, lengths)


def check_bits(engine: HFEngine, seed: int, lengths: list[int]) -> None:
    """Turns begin at random steps, some are replayed, and there may be more conversations than slots."""
    rng = np.random.default_rng(seed)
    expected = [play_alone(engine, number, length) for number, length in enumerate(lengths)]
    asked, asked_before = dict[int, Request](), dict[int, tuple[int, ...]]()
    turns: list[list[Completion]] = [[] for _ in lengths]
    with engine.converse(len(lengths), SAMPLING) as conversations:
        while any(len(done) < length for done, length in zip(turns, lengths, strict=True)):
            for number, done in enumerate(turns):
                if number not in asked and len(done) < lengths[number] and rng.random() < 0.3:
                    before = (*asked_before[number], *done[-1].token_ids) if done else ()
                    asked[number] = request(number, len(done), before)
                    recorded = expected[number][len(done)].token_ids if rng.random() < 0.3 else ()
                    conversations.ask(number, asked[number], recorded)
            for number, completion in conversations.step() if conversations.num_open else ():
                turns[number].append(completion)
                asked_before[number] = asked.pop(number).prompt_ids
                if len(turns[number]) == lengths[number]:
                    conversations.end(number)

    assert turns == expected


def test_turns_are_those_of_a_stream(engine: HFEngine) -> None:
    """The same draws, stop conditions and limits; log-probs differ from other batches' in rounding only."""
    requests = [replace(request(number, 0), max_tokens=1 + number % 8) for number in range(12)]
    streamed = engine.generate(requests, SAMPLING)
    with engine.converse(12, SAMPLING) as conversations:
        for number, each in enumerate(requests):
            conversations.ask(number, each)
        turns = finish_all(conversations)

    assert {one.finish_reason for one in streamed} == {"stop", "length"}
    for number, one in enumerate(streamed):
        assert replace(turns[number], log_probs=()) == replace(one, log_probs=())
        np.testing.assert_allclose(turns[number].log_probs, one.log_probs, atol=1e-5)


def finish_all(conversations: Conversations) -> dict[int, Completion]:
    """Finish turns of which each is its conversation's last."""
    ended: dict[int, Completion] = {}
    while conversations.num_open:
        for number, completion in conversations.step():
            ended[number] = completion
            conversations.end(number)
    return ended


def test_stop_strings_end_turns(engine: HFEngine) -> None:
    sampling = Sampling(8, stop=(VOCAB[7], VOCAB[9]))
    requests = [request(number, 0) for number in range(6)]
    streamed = engine.generate(requests, sampling)
    with engine.converse(6, sampling) as conversations:
        for number, each in enumerate(requests):
            conversations.ask(number, each)
        turns = finish_all(conversations)
    assert [turns[number].token_ids for number in range(6)] == [one.token_ids for one in streamed]


def test_each_turn_reads_its_new_tokens_only(engine: HFEngine) -> None:
    with engine.converse(3, SAMPLING) as conversations:
        conversations.ask(0, Request(PROMPT, 0))
        first = finish(conversations)[0]
        assert conversations.counts.read == len(PROMPT)
        message = (7, 8, 9, 10)
        conversations.ask(0, Request((*PROMPT, *first.token_ids, *message), 1))
        finish(conversations)
        # The last sampled token was not in the cache yet.
        assert conversations.counts.read == len(PROMPT) + 1 + len(message)
        conversations.ask(1, Request(PROMPT, 1))
        conversations.ask(2, Request(PROMPT[:6], 2))
        finish(conversations)

    assert conversations.counts.read == len(PROMPT) + 1 + len(message) + 1 + 1
    assert conversations.counts.copied == len(PROMPT) - 1 + 5


def test_siblings_that_begin_together_read_their_prompt_once(engine: HFEngine) -> None:
    with engine.converse(4, SAMPLING) as conversations:
        for number in range(4):
            conversations.ask(number, Request(PROMPT, number))
        finish(conversations)
    assert (conversations.counts.read, conversations.counts.copied) == (len(PROMPT) + 3, 3 * (len(PROMPT) - 1))


def test_siblings_that_go_on_alike_read_their_messages_once(engine: HFEngine) -> None:
    """The third sibling gets another message, and a fourth one is asked when the others have finished."""
    message, other = (7, 8, 9, 10, 11, 12), (7, 13, 14, 15, 16, 6)
    with engine.converse(4, SAMPLING) as conversations:
        for number in range(4):
            conversations.ask(number, Request(PROMPT, 1))
        written = finish(conversations)[0].token_ids
        read, copied = conversations.counts.read, conversations.counts.copied
        for number, given in enumerate((message, message, other)):
            conversations.ask(number, Request((*PROMPT, *written, *given), 2))
        ended = finish(conversations)
        conversations.ask(3, Request((*PROMPT, *written, *message), 2))
        ended |= finish(conversations)

    # The last sampled token was not in the cache yet, and the last token of a prompt is always read.
    assert conversations.counts.read - read == (1 + len(message)) + 1 + (1 + len(other)) + 1
    assert conversations.counts.copied - copied == 2 * len(message)
    assert ended[0] == ended[1] == ended[3] != ended[2]


def test_conversations_with_a_slot_go_on_before_new_ones_take_it(engine: HFEngine) -> None:
    """A fifth conversation waits for one of four slots while all four are asked for their next turns."""
    with engine.converse(5, SAMPLING) as conversations:
        for number in range(4):
            conversations.ask(number, request(number, 0))
        turns = [[each] for _, each in sorted(finish(conversations).items())]
        conversations.ask(4, request(4, 0))
        for number in range(4):
            conversations.ask(number, request(number, 1, (*request(number, 0).prompt_ids, *turns[number][0].token_ids)))
        for number, each in finish_all(conversations).items():
            turns[number : number + 1] = [[*turns[number], each]] if number < 4 else [[each]]
    assert turns == [play_alone(engine, number, 2 if number < 4 else 1) for number in range(5)]


def test_an_idle_engine_gives_slots_of_waiting_conversations_to_new_ones(engine: HFEngine) -> None:
    """Four slots and nine conversations, all of which wait for a tool after their first turn."""
    with engine.converse(9, SAMPLING) as conversations:
        for number in range(9):
            conversations.ask(number, request(number, 0))
        firsts = finish(conversations)
        assert sorted(firsts) == list(range(9))
        for number, first in firsts.items():
            conversations.ask(number, request(number, 1, (*request(number, 0).prompt_ids, *first.token_ids)))
        seconds = finish(conversations)
    assert [[firsts[number], seconds[number]] for number in range(9)] == [play_alone(engine, n, 2) for n in range(9)]


def test_the_cache_is_freed_with_its_conversations(engine: HFEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    caches: list[weakref.ref[torch.Tensor]] = []
    reserve = KeyValues.reserve

    def noted(self: KeyValues, num_positions: int) -> None:
        reserve(self, num_positions)
        caches.extend(weakref.ref(each) for layer in self._layers for each in layer)

    monkeypatch.setattr(KeyValues, "reserve", noted)
    gc.collect()
    gc.disable()
    try:
        play_alone(engine, 0, 1)
        assert caches and all(cache() is None for cache in caches)
    finally:
        gc.enable()


def test_open_conversations_refuse_streams_and_new_weights(engine: HFEngine) -> None:
    with engine.converse(1, SAMPLING) as conversations:
        conversations.ask(0, Request(PROMPT, 0))
        conversations.end(0)
        assert conversations.num_open == 0
        for refused in (lambda: engine.update_weights({}, 1), lambda: engine.generate([Request(PROMPT, 0)], SAMPLING)):
            with pytest.raises(GenerationError, match="still open"):
                refused()
        with pytest.raises(ValueError, match=r"request 0: prompt_ids: tokens must be in \[0, "):
            conversations.ask(0, Request((len(VOCAB),), 0))


def halves(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Compute a linear layer by sums in another order."""
    middle = inputs.shape[1] // 2
    left = linear_of_any_size(inputs[:, :middle].contiguous(), weight[:, :middle].contiguous(), bias)
    return left + linear_of_any_size(inputs[:, middle:].contiguous(), weight[:, middle:].contiguous(), None)


def test_widths_whose_kernels_sum_in_another_order_are_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def by_size(inputs: torch.Tensor, *arguments: torch.Tensor) -> torch.Tensor:
        return (halves if len(inputs) < 32 else linear_of_any_size)(inputs, *arguments)

    monkeypatch.setattr(row_passes, "linear_of_any_size", by_size)
    engine = HFEngine(HFConfig(), folder, "cpu")
    assert (
        engine._invariant_passes.widths == tuple(width for width in WIDTHS if width >= 32)
        and engine.is_batch_invariant()
    )
    assert HFEngine(HFConfig(max_num_batched_tokens=70), folder, "cpu")._invariant_passes.widths == (32, 48, 64)


def test_a_device_whose_rows_depend_on_their_place_is_not_batch_invariant(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def by_place(inputs: torch.Tensor, *arguments: torch.Tensor) -> torch.Tensor:
        return torch.cat([halves(inputs[:4], *arguments), linear_of_any_size(inputs[4:], *arguments)])

    monkeypatch.setattr(row_passes, "linear_of_any_size", by_place)
    with caplog.at_level(logging.WARNING):
        assert not HFEngine(HFConfig(), folder, "cpu").is_batch_invariant()
    assert "a slow tool holds up all conversations" in caplog.text


def test_angles_that_depend_on_the_longest_row_are_not_batch_invariant(folder: Path) -> None:
    engine = HFEngine(HFConfig(), folder, "cpu")
    engine._model.model.rotary_emb.rope_type = "dynamic"
    assert not engine.is_batch_invariant()
