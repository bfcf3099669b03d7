"""The turns of a ring, as the tokens that were read and sampled."""

from collections.abc import Sequence
from dataclasses import dataclass

from embodyflow.agents.chat.transcript import Tokens, Transcript
from embodyflow.agents.episode import EpisodeContext
from embodyflow.agents.workflow import ChatEngine
from embodyflow.generation.interface import Completion
from embodyflow.prompts.prompts import PromptTooLongError


@dataclass(frozen=True)
class RingTurn:
    """A turn of an agent, in a context of its own.

    Attributes:
        agent: Name of the agent.
        round: Index of the round, from 0.
        opening: Tokens that the agent read.
        completion: Turn that the model sampled after exactly these tokens.
    """

    agent: str
    round: int
    opening: Tokens
    completion: Completion


class RingRecord:
    """Lets agents write, within the limits of an episode.

    Args:
        engine: The model of the episode.
        context: Context of the episode.

    Attributes:
        turns: Turns so far, in their order.
    """

    def __init__(self, engine: ChatEngine, context: EpisodeContext) -> None:
        self._engine, self._context = engine, context
        self._num_tokens = 0
        self.turns: list[RingTurn] = []

    async def write(self, agent: str, round: int, opening: Tokens) -> Tokens | None:
        """Let an agent write its turn; return its tokens without the one that ended it, or ``None`` if none fits.

        Raises:
            PromptTooLongError: The first opening, which is the prompt of the episode, is too long.
        """
        engine, limit = self._engine, self._context.config.max_turn_tokens
        given = len(opening) if self.turns else 0
        if not self.turns and len(opening) > engine.max_prompt_tokens:
            raise PromptTooLongError(
                f"agent {agent}: pre_process gives {len(opening)} tokens; allowed are at most "
                f"rollout.max_prompt_tokens={engine.max_prompt_tokens}"
            )
        room = engine.max_tokens - self._num_tokens - given
        if room < 1:
            return None
        model = engine.model_of(agent)
        completion = await model.generate(opening, room if limit is None else min(room, limit))
        self._num_tokens += given + len(completion.token_ids)
        self._context.counts.turns += 1
        self.turns.append(RingTurn(agent, round, opening, completion))
        ended = completion.finish_reason == "stop"
        return completion.token_ids[:-1] if ended else completion.token_ids


def transcript_of(turns: Sequence[RingTurn]) -> Transcript:
    """Return the transcript of turns, each of which is a context of its agent."""
    transcript = Transcript()
    for turn in turns:
        context = transcript.begin(turn.opening, turn.agent)
        transcript.append_sampled(turn.completion, context)
    return transcript


def last_turns(turns: Sequence[RingTurn]) -> list[RingTurn]:
    """Return the last turn of each agent, in their order."""
    last = {turn.agent: turn for turn in turns}
    return [turn for turn in turns if last[turn.agent] is turn]
