"""Groups of episodes whose turns go on with newer weights as soon as these are published."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from embodyflow.agents.chat.transcript import Tokens
from embodyflow.agents.conducting.open_ended import OpenEnded
from embodyflow.data.streaming.swaps import LoadWeights, SwapLog
from embodyflow.generation.conversations.swapping import SwappingEngine
from embodyflow.generation.interface import Completion, Sampling

T = TypeVar("T")


class Interrupted(OpenEnded[T]):
    """Plays groups as :class:`OpenEnded` does; between two passes of the engine newer weights come.

    Args:
        engine: Engine of several versions; nothing else may use it before :meth:`close`.
        sampling: Sampling parameters of all turns.
        num_episodes: Number of episodes that are expected at a time.
    """

    def __init__(self, engine: SwappingEngine, sampling: Sampling, num_episodes: int) -> None:
        self._swapping = engine
        super().__init__(engine, sampling, num_episodes)

    def offer(self, versions: Mapping[int, LoadWeights]) -> None:
        """Let all turns go on with the newest of these versions; may be called from any thread."""
        self._swapping.offered = versions
        self._call_soon(self._changed.set)

    def play_group(
        self, workflows: Sequence[Callable[[int], Awaitable[T]]], log: SwapLog, timeout: float | None = None
    ) -> list[T]:
        """Run the workflows of a group as :meth:`play` does, with the versions of its turns in a log."""

        async def follow(workflow: Callable[[int], Awaitable[T]], number: int) -> T:
            self._swapping.logs[number] = log
            return await workflow(number)

        return self.play([partial(follow, workflow) for workflow in workflows], timeout)

    async def replay(
        self, episode: int, prompt_ids: Tokens, max_tokens: int, seed: int, recorded: Completion, agent: str = ""
    ) -> Completion:
        """Return a completion that an earlier attempt recorded; nothing is sampled again."""
        return recorded
