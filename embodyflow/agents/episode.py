"""An episode of an agent, and the facts and services that its workflow has."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from embodyflow.agents.call_journal import CallJournal
from embodyflow.agents.tool import Tool
from embodyflow.agents.tool_runner import ToolRunner
from embodyflow.agents.transcript import Transcript
from embodyflow.config.agent import AgentConfig
from embodyflow.errors import InfrastructureError
from embodyflow.rewards.interface import Score


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
    """Failures of the infrastructure that a worker recovered from.

    Attributes:
        retries: Attempts of calls that failed and were repeated.
        redraws: Episodes that were drawn again.
    """

    retries: int = 0
    redraws: int = 0


@dataclass(frozen=True)
class Episode:
    """A finished episode.

    Attributes:
        transcript: Its tokens.
        finished: False if a limit cut it.
        reward: Reward of the workflow itself; ``None`` leaves it to the reward function.
        success: Verdict of the workflow; ``None`` with a reward means that the reward is positive.
    """

    transcript: Transcript
    finished: bool
    reward: float | None = None
    success: bool | None = None


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
        judge: Reward function of the job, called with the episode so far; it grades the model's last turn.
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
    judge: Callable[[Episode], Score]
    counts: Counts = field(default_factory=Counts)

    async def call(self, tool: Tool, arguments: Mapping[str, Any]) -> str:
        """Call a tool, with retries and a time limit, and record its answer.

        Args:
            tool: Tool to call.
            arguments: Arguments as the model wrote them, JSON-able.

        Returns:
            The text for the model: the answer, or what was wrong with the call.

        Raises:
            ToolFailedError: The tool failed in all attempts.
        """
        number, last_draw = self.counts.calls, self.draw == self.config.max_redraws
        self.counts.calls += 1
        answer = self.journal.answer(self.uid, self.draw, number, tool.name, arguments)
        if answer is None:
            answer = await self.runner.call(tool, arguments)
            self.faults.retries += answer.retries
            # The last failure ends the node. A retry of the node must call the tool again, not read of its failure.
            if answer.outcome != "failure" or not last_draw:
                self.journal.add_answer(self.uid, self.draw, number, tool.name, arguments, answer)
        if answer.outcome == "failure":
            raise ToolFailedError(f"tool {tool.name}: {answer.text}")
        self.counts.mistakes += answer.outcome == "mistake"
        return answer.text

    def mistake(self, text: str) -> str:
        """Count a call of the model that names no tool or cannot be read; return the text for the model."""
        self.counts.calls += 1
        self.counts.mistakes += 1
        return text
