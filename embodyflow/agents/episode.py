"""An episode of an agent, and the facts and services that its workflow has."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from embodyflow.agents.chat.call_journal import CallJournal
from embodyflow.agents.chat.transcript import Transcript
from embodyflow.agents.tools.tool import ModelTool
from embodyflow.agents.tools.tool_runner import Answer, ToolRunner
from embodyflow.config.agents.agent import AgentConfig
from embodyflow.errors import InfrastructureError
from embodyflow.rewards.interface import Score, is_reward

log = logging.getLogger(__name__)

JUDGE_QUEUE = ":judge"
"""Name of the queue that the reward function's calls wait in; no tool has it."""

Make: TypeAlias = Callable[[], Awaitable[Answer]]
"""Makes a call, with its retries."""


class ToolFailedError(InfrastructureError):
    """A tool failed in all its attempts, so the episode is drawn again; the message names the tool."""


@dataclass
class Counts:
    """What happened in an episode.

    Attributes:
        turns: Turns of the model.
        calls: Tool calls, with those that were mistakes.
        mistakes: Calls that were the model's mistake.
    """

    turns: int = 0
    calls: int = 0
    mistakes: int = 0


@dataclass
class Faults:
    """Failures of the infrastructure and rejections that a worker recovered from.

    Attributes:
        retries: Attempts of calls that failed and were repeated.
        redraws: Episodes that were drawn again.
        rejections: Episodes that the workflow rejected.
    """

    retries: int = 0
    redraws: int = 0
    rejections: int = 0


@dataclass(frozen=True)
class Episode:
    """A finished episode.

    Attributes:
        transcript: Its tokens.
        finished: False if a limit cut it.
        reward: Reward of the workflow itself; ``None`` leaves it to the reward function.
        success: Verdict of the workflow; ``None`` with a reward means that the reward is positive.
        turn_rewards: Reward of each turn of the model, of all contexts in order, besides the episode's reward; empty
            gives none.
        agent_rewards: Outcome of each agent by its name, which counts for that agent's tokens alone. It takes the
            place of the episode's reward in training; that one is reported. ``None`` means that all agents share the
            reward.

    Raises:
        ValueError: A reward is NaN or infinite, the number of turn rewards is not that of turns, or an agent that wrote
            a turn has no reward.
    """

    transcript: Transcript
    finished: bool
    reward: float | None = None
    success: bool | None = None
    turn_rewards: tuple[float, ...] = ()
    agent_rewards: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        num_turns = self.transcript.num_turns
        of_agents = self.agent_rewards or {}
        if self.agent_rewards is not None and (missing := sorted(self.transcript.writers - of_agents.keys())):
            raise ValueError(f"agent_rewards: {missing[0]!r} wrote a turn and has no reward; each agent needs one")
        if self.turn_rewards and len(self.turn_rewards) != num_turns:
            raise ValueError(f"turn_rewards: {len(self.turn_rewards)} for {num_turns} turns; each turn needs one")
        rewards = {
            "reward": (0.0 if self.reward is None else self.reward,),
            "turn_rewards": self.turn_rewards,
            "agent_rewards": tuple(of_agents.values()),
        }
        for name, values in rewards.items():
            if not all(is_reward(float(value)) for value in values):
                raise ValueError(f"{name}={getattr(self, name)}: must be finite, also in float32")


@dataclass
class EpisodeContext:
    """Facts and services of one draw of an episode.

    Attributes:
        uid: Id of the row, unique in the run.
        seed: Seed for draws of the workflow.
        split: ``train``, ``eval`` or ``demo``.
        draw: 0, or how often the episode was drawn again.
        config: Section ``rollout.agent``.
        journal: Calls of an earlier attempt, and those of this one.
        runner: Runs the tools of all episodes that are played side by side.
        faults: Failures that the worker recovered from.
        grade: Reward function of the job, called with the episode so far; it grades the model's last turn and blocks.
        counts: Turns and calls so far.
    """

    uid: int
    seed: int
    split: str
    draw: int
    config: AgentConfig
    journal: CallJournal
    runner: ToolRunner
    faults: Faults
    grade: Callable[[Episode], Score]
    counts: Counts = field(default_factory=Counts)

    async def call(self, tool: ModelTool, arguments: Mapping[str, Any], make: Make | None = None) -> str:
        """Call a tool, with retries and a time limit, and record its answer.

        Args:
            tool: Tool to call.
            arguments: Arguments as the model wrote them, JSON-able.
            make: Function that makes the call in place of ``runner``. It also repeats a recorded call, for its effect.

        Returns:
            The text for the model: the answer, or what was wrong with the call.

        Raises:
            ToolFailedError: The tool failed in all attempts.
        """
        number = self.counts.calls
        self.counts.calls += 1
        repeat, make = make is not None, make or partial(self.runner.call, tool, arguments)
        answer = await self.answer(number, tool.name, arguments, make, repeat)
        self.counts.mistakes += answer.outcome == "mistake"
        return answer.text

    async def answer(
        self, number: int, name: str, arguments: Mapping[str, Any], make: Make, repeat: bool = False
    ) -> Answer:
        """Return the recorded answer of a call; without one, make the call and record its answer.

        Args:
            number: Number of the call in the episode; negative ones are no calls of the model.
            name: Name of the function.
            arguments: Arguments, JSON-able.
            make: Makes the call.
            repeat: Make a recorded call again for its effect; the recorded answer counts.

        Raises:
            ToolFailedError: The call failed in all attempts.
        """
        recorded = self.journal.answer(self.uid, self.draw, number, name, arguments)
        answer = recorded
        if recorded is None or (repeat and recorded.outcome != "failure"):
            answer = await make()
            self.faults.retries += answer.retries
        assert answer is not None
        if recorded is None and (answer.outcome != "failure" or self.draw < self.config.max_redraws):
            # The last failure ends the node. A retry of the node must make the call again, not read of its failure.
            self.journal.add_answer(self.uid, self.draw, number, name, arguments, answer)
        if answer.outcome == "failure":
            raise ToolFailedError(f"tool {name}: {answer.text}")
        if recorded is not None and recorded.text != answer.text:
            log.warning("episode %d: %s does not answer as before; the recorded answer counts", self.uid, name)
        return recorded or answer

    async def judge(self, episode: Episode) -> Score:
        """Return the reward function's score of the model's last turn, in an episode that may go on.

        The function runs in a thread, one episode after the other, and other episodes go on meanwhile. It gets one
        episode a call, so a score does not depend on which episodes wait.

        Raises:
            RewardError: The reward function failed.
        """
        score: Score = await self.runner.run_alone(JUDGE_QUEUE, self.grade, {"episode": episode})
        return score

    def mistake(self, text: str) -> str:
        """Count a call of the model that names no tool or cannot be read; return the text for the model."""
        self.counts.calls += 1
        self.counts.mistakes += 1
        return text
