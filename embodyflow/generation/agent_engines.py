"""Generation with a model for each agent: every request goes to the engine of its agent."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from embodyflow.generation.interface import (
    Arrivals,
    Completion,
    ConversationEngine,
    Conversations,
    GenerationError,
    Request,
    Sampling,
    TokenCounts,
)
from embodyflow.generation.streams import in_order
from embodyflow.policies.language.agent_arrays import arrays_of

T = TypeVar("T")


class AgentEngines:
    """Implements :class:`~embodyflow.generation.interface.ConversationEngine` with an engine for each agent.

    Args:
        engines: Engine of each agent by name, of models with the same vocabulary.

    Attributes:
        engines: The engines.
        version: Version of the current weights of all agents.
    """

    def __init__(self, engines: Mapping[str, ConversationEngine]) -> None:
        self.engines, self.version = dict(engines), 0

    def stream(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        """Yield completions, those of one agent after those of another."""
        yield from self._complete(list(enumerate(requests)), sampling)

    def serve(self, arrivals: Arrivals, sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        """Yield completions round by round: requests that arrive during a round wait for the next one.

        So the requests that share a step depend on nothing but the answers of ``arrivals``.
        """
        while arrived := arrivals.take(idle=True):
            yield from self._complete(arrived, sampling)

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """Return the completions in the order of the requests."""
        return in_order(self.stream(requests, sampling))

    def is_batch_invariant(self) -> bool:
        """Return True if the engines of all agents are batch-invariant."""
        return all(engine.is_batch_invariant() for engine in self.engines.values())

    @contextmanager
    def converse(self, num_conversations: int, sampling: Sampling) -> Iterator["AgentConversations"]:
        """Open conversations with all agents."""
        with ExitStack() as stack:
            opened = {
                name: stack.enter_context(engine.converse(num_conversations, sampling))
                for name, engine in self.engines.items()
            }
            yield AgentConversations(opened)

    def score(self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[npt.NDArray[np.float32]]:
        """Refuse to score, since the agents' log-probs differ; an engine of :attr:`engines` scores.

        Raises:
            GenerationError: In each call.
        """
        raise GenerationError(f"sequences have no agent; score with the engine of one of {', '.join(self.engines)}")

    def update_weights(self, weights: Mapping[str, npt.NDArray[Any]], version: int) -> None:
        """Load new weights of all agents, whose names begin with that of the agent and a dot."""
        for name, engine in self.engines.items():
            engine.update_weights(arrays_of(name, weights), version)
        self.version = version

    def close(self) -> None:
        """Close all engines."""
        for engine in self.engines.values():
            engine.close()

    def _complete(
        self, requests: Sequence[tuple[int, Request]], sampling: Sampling
    ) -> Iterator[tuple[int, Completion]]:
        """Yield the completion of each request, given with its position."""
        for _, request in requests:
            _of_agent(self.engines, request)
        for name, engine in self.engines.items():
            mine = [(position, request) for position, request in requests if request.agent == name]
            for index, completion in engine.stream([request for _, request in mine], sampling):
                yield mine[index][0], completion


class AgentConversations:
    """Implements :class:`~embodyflow.generation.interface.Conversations` with conversations of each agent.

    Args:
        opened: Conversations by the agent's name.
    """

    def __init__(self, opened: Mapping[str, Conversations]) -> None:
        self._opened, self.counts = dict(opened), TokenCounts()
        for each in self._opened.values():
            each.counts = self.counts

    @property
    def num_open(self) -> int:
        """Number of turns that are not finished."""
        return sum(each.num_open for each in self._opened.values())

    def ask(self, conversation: int, request: Request, recorded: tuple[int, ...] = ()) -> None:
        """Begin a turn of the request's agent.

        Raises:
            ValueError: The request names no agent with weights.
        """
        _of_agent(self._opened, request).ask(conversation, request, recorded)

    def step(self) -> list[tuple[int, Completion]]:
        """Compute a pass of each agent with an open turn; return the turns that these finished."""
        ended = [pair for each in self._opened.values() if each.num_open for pair in each.step()]
        return sorted(ended, key=lambda pair: pair[0])

    def end(self, conversation: int) -> None:
        """Abandon the turn of a conversation, and give up its places in all caches."""
        for each in self._opened.values():
            each.end(conversation)


def _of_agent(each: Mapping[str, T], request: Request) -> T:
    if request.agent not in each:
        raise ValueError(f"agent={request.agent!r}: has no weights; allowed are {', '.join(each)}")
    return each[request.agent]
