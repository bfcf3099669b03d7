"""Conversations whose turns go on with newer weights between two passes.

A lane is an engine with the weights of one version. A turn moves from lane to lane: to the newest version as soon as it
is there or, where a record says so, at the recorded token to the recorded version. Which lanes exist, and which turns
share their passes, changes no bit of a turn: each lane is batch-invariant.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from embodyflow.data.streaming.swaps import LoadWeights, SwapLog, Weights
from embodyflow.generation.conversations.slot_conversations import SlotConversations
from embodyflow.generation.conversations.turn import Turn
from embodyflow.generation.interface import Completion, Request, Sampling, TokenCounts
from embodyflow.generation.transformers_engine.engine import HFEngine


@dataclass(eq=False)
class _Lane:
    """An engine with the weights of one version."""

    engine: HFEngine
    version: int
    conversations: SlotConversations
    opened: ExitStack


@dataclass(eq=False)
class _Held:
    """A turn that is not finished, and the lane that it is in.

    Attributes:
        turn: The turn.
        log: Versions of the turns of its group.
        lane: Lane that samples it, or whose cache it waits in; ``None`` without one.
        starts: First token of each version that has sampled it, with the version.
    """

    turn: Turn
    log: SwapLog
    lane: _Lane | None = None
    starts: list[tuple[int, int]] = field(default_factory=list)

    def versions(self, num_tokens: int) -> tuple[int, ...]:
        """Return the version of each token."""
        ends = [*(start for start, _ in self.starts[1:]), num_tokens]
        pairs = zip(self.starts, ends, strict=True)
        return tuple(version for (start, version), end in pairs for _ in range(start, end))


class SwappingEngine:
    """Implements :class:`~embodyflow.generation.interface.Conversing` with engines of several versions.

    Args:
        build: Builds an engine that is batch-invariant.
        load: Loads weights of a version into an engine.
        keeps_cache: Whether the keys and values that earlier versions computed stay at a swap. Otherwise the new
            version reads all tokens again.

    Attributes:
        offered: Versions that turns may go on with, of which the newest counts. Another thread may set it: a pass sees
            the old versions or the new ones.
        logs: Versions of the turns of each conversation, which must be there before its first turn.
    """

    def __init__(
        self,
        build: Callable[[], HFEngine],
        load: Callable[[HFEngine, Weights, int], None],
        *,
        keeps_cache: bool,
    ) -> None:
        self.build, self.load, self.keeps_cache = build, load, keeps_cache
        self.offered: Mapping[int, LoadWeights] = {}
        self.logs: dict[int, SwapLog] = {}

    @contextmanager
    def converse(self, num_conversations: int, sampling: Sampling) -> Iterator["SwappingConversations"]:
        """Open conversations, and release their engines at the end."""
        conversations = SwappingConversations(self, num_conversations, sampling)
        try:
            yield conversations
        finally:
            conversations.close()


class SwappingConversations:
    """Implements :class:`~embodyflow.generation.interface.Conversations`.

    Args:
        engine: Builds engines and offers versions.
        num_conversations: Number of conversations that are expected at a time.
        sampling: Sampling parameters of all turns, without stop strings.

    Attributes:
        counts: Tokens so far.
    """

    def __init__(self, engine: SwappingEngine, num_conversations: int, sampling: Sampling) -> None:
        self._engine, self._num_conversations, self._sampling = engine, num_conversations, sampling
        self._lanes: list[_Lane] = []
        self._turns: dict[int, _Held] = {}
        self.counts = TokenCounts()

    @property
    def num_open(self) -> int:
        """Number of turns that can go on; others wait for a version that is not there yet."""
        self._move_turns()
        return sum(lane.conversations.num_open for lane in self._lanes)

    def ask(self, conversation: int, request: Request, recorded: tuple[int, ...] = ()) -> None:
        """Begin a turn, of a conversation that a log follows."""
        assert not recorded, "a recorded turn is not sampled again"
        turn = self._lane_of(max(self._engine.offered)).conversations.turn_of(conversation, request)
        self._turns[conversation] = _Held(turn, self._engine.logs[conversation])

    def step(self) -> list[tuple[int, Completion]]:
        """Compute a pass of every version that has turns; return the turns that it finished."""
        self._move_turns()
        ended = []
        for lane in self._lanes:
            if lane.conversations.num_open:
                ended += [(number, self._finish(number, turn)) for number, turn in lane.conversations.step()]
        return sorted(ended, key=lambda pair: pair[0])

    def end(self, conversation: int) -> None:
        """Abandon the turn of a conversation, if it has one, and give up its place in all caches."""
        self._turns.pop(conversation, None)
        self._engine.logs.pop(conversation, None)
        for lane in self._lanes:
            lane.conversations.end(conversation)

    def close(self) -> None:
        """Release the engines."""
        for lane in self._lanes:
            lane.opened.close()
            lane.engine.close()
        self._lanes.clear()

    def _finish(self, conversation: int, completion: Completion) -> Completion:
        held = self._turns.pop(conversation)
        versions = held.versions(len(completion.token_ids))
        return replace(completion, policy_version=versions[0], versions=versions)

    def _move_turns(self) -> None:
        """Move every turn to the version that samples its next token."""
        if not self._turns:
            return
        newest = max(self._engine.offered)
        for held in self._turns.values():
            version = held.log.recorded(held.turn.request.seed, held.turn.num_tokens)
            if version is None:
                version = newest
            if held.lane is None or held.lane.version != version:
                self._move(held, version)

    def _move(self, held: _Held, version: int) -> None:
        turn, number = held.turn, held.turn.conversation
        keeps = self._engine.keeps_cache and held.lane is not None and not turn.is_reading
        if version not in self._engine.offered and all(lane.version != version for lane in self._lanes):
            self._wait(held, keeps)
            return
        lane = self._lane_of(version)
        if keeps and not lane.conversations.has_room:
            self._wait(held, keeps)
            return
        held.log.add(turn.request.seed, turn.num_tokens, version)
        if keeps:
            assert held.lane is not None
            lane.conversations.take_over(turn, held.lane.conversations)
        else:
            if held.lane is not None:
                held.lane.conversations.end(number)
            lane.conversations.attach(turn)
        held.lane = lane
        held.starts = [start for start in held.starts if start[0] < turn.num_tokens] + [(turn.num_tokens, version)]

    def _wait(self, held: _Held, keeps: bool) -> None:
        """Let a turn wait for a version, or for a place in its cache."""
        if keeps:
            assert held.lane is not None
            held.lane.conversations.pause(held.turn.conversation)
        elif held.lane is not None:
            held.lane.conversations.end(held.turn.conversation)
            held.lane = None

    def _lane_of(self, version: int) -> _Lane:
        """Return the lane of a version; a new one takes an idle engine, or a further one, and loads the weights."""
        for lane in self._lanes:
            if lane.version == version:
                return lane
        busy = {held.lane for held in self._turns.values()}
        idle = next((lane for lane in self._lanes if lane not in busy), None)
        if idle is not None:
            idle.opened.close()
            self._lanes.remove(idle)
        engine = self._engine.build() if idle is None else idle.engine
        self._engine.load(engine, self._engine.offered[version](), version)
        opened = ExitStack()
        conversations = opened.enter_context(engine.converse(self._num_conversations, self._sampling))
        conversations.counts = self.counts
        self._lanes.append(_Lane(engine, version, conversations, opened))
        return self._lanes[-1]
