"""Conversations that are sampled side by side, each turn as soon as it is asked for."""

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from embodyflow.generation.conversations.key_values import Copies, KeyValues
from embodyflow.generation.conversations.row_passes import Chunk, RowPasses
from embodyflow.generation.conversations.slots import Slots, common_length, key_of
from embodyflow.generation.conversations.turn import Turn
from embodyflow.generation.interface import Completion, Request, Sampling, TokenCounts, check_requests
from embodyflow.generation.noise import build_noise
from embodyflow.generation.sampler import Sampler
from embodyflow.generation.stopping import StopStrings


class SlotConversations:
    """Implements :class:`~embodyflow.generation.interface.Conversations`.

    A pass takes the next token of every turn and as many tokens of new prompts and messages as fit. Since a token's
    results depend on nothing but the tokens before it, it does not matter which pass takes it, nor whether its prefix
    was read, copied from another slot or computed again. So turns that go on alike read their common tokens once: the
    others wait for a pass and copy them.

    Args:
        passes: Passes of the decoder.
        key_values: Cache of the passes.
        sampling: Sampling parameters and stop conditions of all turns.
        vocab_size: Size of the model's vocabulary.
        max_model_len: Most tokens of a conversation.
        version: Version of the weights.
        build_stop: Builds the search for stop strings of a turn; ``None`` without stop strings.
    """

    def __init__(
        self,
        passes: RowPasses,
        key_values: KeyValues,
        sampling: Sampling,
        vocab_size: int,
        max_model_len: int,
        version: int,
        build_stop: Callable[[], StopStrings] | None,
    ) -> None:
        self._passes, self._key_values, self._sampling = passes, key_values, sampling
        self._vocab_size, self._max_model_len = vocab_size, max_model_len
        self._version, self._build_stop = version, build_stop
        self._slots, self._sampler = Slots(key_values.num_slots), Sampler(sampling)
        device = passes.device
        self._noise = None if sampling.is_greedy else build_noise(key_values.num_slots, vocab_size, device)
        self._active: list[Turn] = []  # each with a slot; those of the last pass at the end
        self._waiting = deque[Turn]()
        self._paused: set[int] = set()  # conversations that keep their slots
        self._readers: dict[tuple[int, ...], Turn] = {}  # a turn that reads its prompt, by the first tokens
        self.counts = TokenCounts()

    @property
    def num_open(self) -> int:
        """Number of turns that are not finished."""
        return len(self._active) + len(self._waiting)

    def ask(self, conversation: int, request: Request, recorded: tuple[int, ...] = ()) -> None:
        """Begin a turn."""
        self.attach(self.turn_of(conversation, request, recorded))

    @property
    def has_room(self) -> bool:
        """True if a slot is free."""
        return self._slots.has_free

    def turn_of(self, conversation: int, request: Request, recorded: tuple[int, ...] = ()) -> Turn:
        """Return a turn that has not begun; see :meth:`ask`."""
        check_requests([(conversation, request)], self._sampling, self._vocab_size, self._max_model_len)
        stop = None if self._build_stop is None else self._build_stop()
        return Turn(conversation, request, self._sampling, recorded, stop)

    def attach(self, turn: Turn) -> None:
        """Begin a turn, or go on with one that another cache has held; the model reads all its tokens."""
        turn.read_again()
        self._slots.touch(turn.conversation)
        self._waiting.append(turn)

    def take_over(self, turn: Turn, source: "SlotConversations") -> None:
        """Go on with a turn of other conversations and with its keys and values, in a slot that must be free."""
        slot, tokens = self._slots.take(turn.conversation), source._slots.tokens[turn.slot]
        self._key_values.copy_from(source._key_values, turn.slot, slot, len(tokens))
        self._slots.tokens[slot] = list(tokens)
        self._slots.mark_mixed(slot)
        source.end(turn.conversation)
        turn.slot = slot
        self._active.append(turn)
        self._start_noise(turn)

    def pause(self, conversation: int) -> None:
        """Stop the turn of a conversation until :meth:`take_over` or :meth:`end`; it keeps its slot."""
        self._leave(conversation)
        self._paused.add(conversation)

    def end(self, conversation: int) -> None:
        """Abandon the turn of a conversation, if it has one, and free its slot."""
        self._leave(conversation)
        self._paused.discard(conversation)
        self._slots.release(conversation)

    def _leave(self, conversation: int) -> None:
        for turn in self._active:
            if turn.conversation == conversation:
                self._forget_reader(turn)
        self._active = [turn for turn in self._active if turn.conversation != conversation]
        self._waiting = deque(turn for turn in self._waiting if turn.conversation != conversation)

    def step(self) -> list[tuple[int, Completion]]:
        """Compute one pass; return the turns that it finished, with their conversations."""
        self._admit()
        turns, chunks = self._choose()
        if not turns:  # all slots belong to paused conversations
            return []
        hidden = self._passes.hidden(chunks)
        drawing, rows = self._advance(turns, chunks)
        if not drawing:
            return []
        slots = np.array([turn.slot for turn in drawing])
        noise = None if self._noise is None else self._noise.next(slots)
        last = hidden if len(rows) == len(hidden) else hidden[rows]
        tokens, log_probs = self._sampler.draw(self._passes.logits(last), noise)
        self.counts.sampled += len(drawing)
        drawn = zip(drawing, tokens.tolist(), log_probs.tolist(), strict=True)
        ended = [turn for turn, token, log_prob in drawn if turn.append(token, log_prob)]
        done = set(ended)
        self._active = [turn for turn in self._active if turn not in done]
        completions = [(turn.conversation, turn.completion(self._version)) for turn in ended]
        return sorted(completions, key=lambda pair: pair[0])

    def _advance(self, turns: Sequence[Turn], chunks: Sequence[Chunk]) -> tuple[list[Turn], list[int]]:
        """Move chunks from the unread tokens to the slots; return the turns that sample, and their last rows."""
        drawing, rows, end, held = list[Turn](), list[int](), 0, self._slots.tokens
        for turn, (slot, _, tokens) in zip(turns, chunks, strict=True):
            end += len(tokens)
            held[slot] += tokens
            del turn.unread[: len(tokens)]
            if turn.is_reading:
                self._note_read(turn, len(tokens))
            if not turn.unread:
                drawing.append(turn)
                rows.append(end - 1)
        return drawing, rows

    def _note_read(self, turn: Turn, num_tokens: int) -> None:
        """Count tokens of a prompt that were read; a prompt that was read to its end can be copied."""
        self.counts.read += num_tokens
        if not turn.unread:
            self._slots.remember(turn.slot)
            self._forget_reader(turn)

    def _forget_reader(self, turn: Turn) -> None:
        key = key_of(turn.context)
        if self._readers.get(key) is turn:
            del self._readers[key]

    def _choose(self) -> tuple[list[Turn], list[Chunk]]:
        """Return turns and their next tokens for a pass; turns that found no room come first in the next one."""
        room, chosen, left, chunks = self._passes.max_rows, list[Turn](), list[Turn](), list[Chunk]()
        held = self._slots.tokens
        for turn in self._active:
            if not room:
                left.append(turn)
                continue
            tokens = turn.unread[:room]
            chosen.append(turn)
            chunks.append(Chunk(turn.slot, len(held[turn.slot]), tokens))
            room -= len(tokens)
        self._active = left + chosen
        return chosen, chunks

    def _admit(self) -> None:
        """Begin waiting turns: those of conversations with a slot first, then others while there are slots."""
        copies = Copies()
        continuing = [turn for turn in self._waiting if self._slots.of(turn.conversation) is not None]
        is_idle = not self._active and not continuing
        for turn in continuing:
            self._admit_turn(turn, self._slots.of(turn.conversation), copies)
        for turn in [turn for turn in self._waiting if self._slots.of(turn.conversation) is None]:
            if not self._slots.has_free:
                if not is_idle or len(self._active) + len(self._paused) == self._key_values.num_slots:
                    break
                self._slots.release_oldest()  # an idle engine takes the slots of idle conversations
            self._admit_turn(turn, None, copies)
        self._key_values.copy(copies)

    def _admit_turn(self, turn: Turn, slot: int | None, copies: Copies) -> None:
        """Begin a turn after the longest prefix that any slot holds, unless another turn is reading more of it."""
        prompt = turn.context
        kept = 0 if slot is None else self._slots.shared(slot, prompt)
        source, found = self._slots.longest_prefix(prompt)
        length = max(found, kept)
        if self._is_being_read(prompt, length):
            return
        if slot is None:
            slot = self._slots.take(turn.conversation)
        if found > kept and source != slot:
            copies.add(source, slot, kept, length)
            self._slots.tokens[slot] = self._slots.tokens[source][:length]
        self.counts.copied += length - kept
        self._waiting.remove(turn)
        self._begin(turn, slot, length)

    def _is_being_read(self, prompt: tuple[int, ...], length: int) -> bool:
        """Return True if an active turn reads at least half of what the prompt has after a prefix of this length."""
        reader, unread = self._readers.get(key_of(prompt)), len(prompt) - 1 - length
        if reader is None or not unread:
            return False
        return common_length(reader.context, prompt[:-1]) - length >= unread / 2

    def _begin(self, turn: Turn, slot: int, length: int) -> None:
        """Begin a turn in a slot of which it keeps the first tokens."""
        turn.slot, turn.unread = slot, list(turn.context[length:])
        del self._slots.tokens[slot][length:]
        self._active.append(turn)
        self._readers.setdefault(key_of(turn.context), turn)
        self._start_noise(turn)

    def _start_noise(self, turn: Turn) -> None:
        if self._noise is not None:
            self._noise.start(turn.slot, turn.request.seed, turn.num_tokens)
