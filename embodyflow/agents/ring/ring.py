"""A workflow in which agents write one after the other, round after round."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from embodyflow.agents.chat.transcript import Tokens
from embodyflow.agents.episode import Episode, EpisodeContext
from embodyflow.agents.ring.member import Member
from embodyflow.agents.ring.ring_environment import RingEnvironment, RingSession
from embodyflow.agents.ring.ring_record import RingRecord, RingTurn, last_turns, transcript_of
from embodyflow.agents.workflow import ChatEngine
from embodyflow.config.agents.agent import AgentConfig
from embodyflow.errors import ConfigError
from embodyflow.prompts.prompts import Prompt, encode


@dataclass(frozen=True)
class _Outcome:
    """The end of an episode: reward of each round that was rewarded, verdict, and whether no limit cut it."""

    rewards: Sequence[float]
    success: bool
    finished: bool


class Ring:
    """Implements :class:`~embodyflow.agents.workflow.RolloutWorkflow`, as siiRL's multi-agent loop plays it.

    The first agent reads the prompt; each further one reads what ``post_process`` made of the prompt and the turns
    before it. After the last agent the environment gets the texts of all of them. Its text for the last agent begins
    the next round, and an agent that observes also reads its own. Each turn is a context of its agent, and the model is
    trained on exactly the tokens that it read and sampled there.

    Args:
        config: Section ``rollout.agent`` with ``ring``.

    Raises:
        ConfigError: A function or the environment cannot be used.
    """

    def __init__(self, config: AgentConfig) -> None:
        if config.ring is None:
            raise ConfigError("rollout.agent.ring: must be set for the workflow Ring")
        self._config, self._ring = config, config.ring
        self._members = [Member(name, member) for name, member in config.ring.members.items()]
        self._environment = None if config.ring.environment is None else RingEnvironment(config.ring.environment)

    @property
    def is_rewarded(self) -> bool:
        """True if an environment gives the rewards."""
        return self._environment is not None

    def check_members(self, tokenizer: Any, row: Prompt, max_prompt_tokens: int) -> None:
        """Check that the functions of all agents make tokens of a row, and that the first prompt fits.

        Raises:
            ConfigError: A function raises or returns something else.
        """
        tokens = encode(row, tokenizer, max_prompt_tokens)
        for member in self._members:
            key = f"rollout.agent.ring.members.{member.name}"
            try:
                opening = member.open(tokenizer, tokens, None)
                tokens = member.close(tokenizer, tokens, opening[-1:])
            except Exception as error:  # a user's function may raise anything; it is reported in one line
                line = str(error).strip().partition("\n")[0]
                raise ConfigError(f"{key}: {type(error).__name__}: {line}") from error
            if member is self._members[0] and len(opening) > max_prompt_tokens:
                raise ConfigError(
                    f"rollout.max_prompt_tokens={max_prompt_tokens}: pre_process of {member.name} gives {len(opening)} "
                    "tokens for the first row"
                )

    async def run(self, engine: ChatEngine, row: Prompt, context: EpisodeContext) -> Episode:
        """Play rounds until the environment stops, or a limit cuts the episode."""
        record = RingRecord(engine, context)
        if self._environment is None:
            return self._episode(record.turns, await self._discuss(record, engine, row, context))
        session = RingSession(self._environment, row, context, len(self._members))
        await session.begin()
        return self._episode(record.turns, await self._play(record, engine, row, session))

    async def _play(self, record: RingRecord, engine: ChatEngine, row: Prompt, session: RingSession) -> _Outcome:
        """Play rounds with an environment that rewards them."""
        tokens = encode(row, engine.tokenizer, engine.max_prompt_tokens)
        seen: dict[str, str] = {}
        rewards: list[float] = []
        stopped = False
        while not stopped and len(rewards) < self._config.max_turns:
            left = await self._round(len(rewards), tokens, seen, record, engine.tokenizer)
            if left is None:
                break
            step = await session.step([engine.tokenizer.decode(each, skip_special_tokens=False) for each in left])
            rewards.append(step.reward)
            stopped = step.stop
            seen = {member.name: text for member, text in zip(self._members, step.observations, strict=True)}
            tokens = _encoded(engine.tokenizer, step.observations[-1])
        return _Outcome(rewards, bool(rewards) and rewards[-1] > 0, stopped)

    async def _discuss(self, record: RingRecord, engine: ChatEngine, row: Prompt, context: EpisodeContext) -> _Outcome:
        """Play all rounds without an environment; the reward function judges the last turn."""
        tokens = encode(row, engine.tokenizer, engine.max_prompt_tokens)
        for number in range(self._config.max_turns):
            left = await self._round(number, tokens, {}, record, engine.tokenizer)
            if left is None:
                return _Outcome((), success=False, finished=False)
            tokens = left[-1]
        finished = record.turns[-1].completion.finish_reason == "stop"
        score = await context.judge(Episode(transcript_of(record.turns), finished))
        return _Outcome([0.0] * (self._config.max_turns - 1) + [score.reward], score.correct, finished)

    async def _round(
        self, number: int, tokens: Tokens, seen: Mapping[str, str], record: RingRecord, tokenizer: Any
    ) -> list[Tokens] | None:
        """Let each agent write a turn; return the tokens of the ring after each, or ``None`` if one has no room."""
        left = []
        for member in self._members:
            opening = member.open(tokenizer, tokens, seen.get(member.name))
            written = await record.write(member.name, number, opening)
            if written is None:
                return None
            tokens = member.close(tokenizer, tokens, written)
            left.append(tokens)
        return left

    def _episode(self, turns: Sequence[RingTurn], outcome: _Outcome) -> Episode:
        """Return the episode of the turns that are trained on, with the rewards of their agents."""
        trained = last_turns(turns) if self._ring.trained_turns == "last" else list(turns)
        earned = [self._reward(turn, outcome.rewards) for turn in trained]
        last = last_turns(trained)
        return Episode(
            transcript_of(trained),
            outcome.finished,
            reward=float(sum(outcome.rewards)),
            success=outcome.success,
            turn_rewards=tuple(0.0 if turn in last else reward for turn, reward in zip(trained, earned, strict=True)),
            agent_rewards={turn.agent: reward for turn, reward in zip(trained, earned, strict=True) if turn in last},
        )

    def _reward(self, turn: RingTurn, rewards: Sequence[float]) -> float:
        """Return the reward of a turn; a round that a limit cut has none."""
        shares = self._ring.share_reward or turn.agent == self._members[-1].name
        return rewards[turn.round] if shares and turn.round < len(rewards) else 0.0


def _encoded(tokenizer: Any, text: str) -> Tokens:
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
