"""An episode of an agent, and what its workflow may use while it runs."""

import asyncio
import inspect
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from embodyflow.agents.answers import Answer, AnswerJournal
from embodyflow.agents.chat_format import ChatFormat, Message
from embodyflow.agents.tool import ModelMistake, Tool, is_mistake, text_of
from embodyflow.agents.transcript import Origin, Tokens, Transcript
from embodyflow.config.agent import AgentConfig
from embodyflow.errors import InfrastructureError
from embodyflow.generation.interface import Completion
from embodyflow.prompts.prompts import Prompt

log = logging.getLogger(__name__)


class ToolFailedError(InfrastructureError):
    """A tool failed in all its attempts, so the episode is drawn again; the message names the tool."""


class Model(Protocol):
    """The model as a workflow sees it."""

    async def generate(self, prompt_ids: Tokens, max_tokens: int) -> Completion:
        """Sample a completion."""


@dataclass
class Counts:
    """What happened in an episode.

    Attributes:
        turns: Turns of the model.
        calls: Tool calls.
        mistakes: Calls that were the model's mistake.
        retries: Attempts of calls that failed and were repeated.
        draws: Times that the episode was drawn again.
    """

    turns: int = 0
    calls: int = 0
    mistakes: int = 0
    retries: int = 0
    draws: int = 0


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
    """Facts and services of one episode.

    Attributes:
        uid: Id of the row, unique in the run.
        seed: Seed for draws of the workflow.
        split: ``train`` or ``eval``.
        draw: 0, or how often the episode was drawn again.
        config: Section ``rollout.agent``.
        counts: What happened so far.
    """

    uid: int
    seed: int
    split: str
    draw: int
    config: AgentConfig
    answers: AnswerJournal
    counts: Counts = field(default_factory=Counts)

    async def call(self, tool: Tool, arguments: Mapping[str, Any]) -> str:
        """Call a tool, with retries and a time limit, and record its answer.

        Args:
            tool: Tool to call.
            arguments: Arguments as the model wrote them.

        Returns:
            The text for the model: the answer, or what was wrong with the call.

        Raises:
            ToolFailedError: The tool failed in all attempts.
        """
        number = self.counts.calls
        self.counts.calls += 1
        answer = self.answers.find(self.uid, self.draw, number)
        if answer is None:
            answer = await self._attempt(tool, arguments)
            self.answers.append(self.uid, self.draw, number, answer)
        self.counts.retries += answer.retries
        if answer.outcome == "failure":
            raise ToolFailedError(f"tool {tool.name}: {answer.text}")
        self.counts.mistakes += answer.outcome == "mistake"
        return answer.text

    def mistake(self, text: str) -> str:
        """Count a mistake of the model that is no valid call; return its text."""
        self.counts.calls += 1
        self.counts.mistakes += 1
        return text

    async def _attempt(self, tool: Tool, arguments: Mapping[str, Any]) -> Answer:
        try:
            values = tool.validate(arguments)
        except ModelMistake as error:
            return Answer("mistake", str(error))
        reason = ""
        for attempt in range(self.config.tool_retries + 1):
            try:
                value = await asyncio.wait_for(_run(tool, values), self.config.tool_timeout)
                return Answer("answer", text_of(value), attempt)
            except TimeoutError:
                reason = f"no answer within rollout.agent.tool_timeout={self.config.tool_timeout:g} seconds"
            except Exception as error:
                if is_mistake(error):
                    return Answer("mistake", f"{type(error).__name__}: {error}", attempt)
                reason = f"{type(error).__name__}: {error}"
            log.warning("episode %d: tool %s failed: %s", self.uid, tool.name, reason)
        return Answer("failure", reason, self.config.tool_retries)


class Conversation:
    """A chat with the model that keeps the tokens as they were sampled.

    Args:
        model: Model that writes the assistant's turns.
        prompt: Prompt, a chat.
        format: Encoding of messages.
        tokenizer: Tokenizer of the model.
        max_tokens: Most tokens after the prompt, of all turns and messages.
        context: Context of the episode.
    """

    def __init__(
        self, model: Model, prompt: Prompt, format: ChatFormat, tokenizer: Any, max_tokens: int, context: EpisodeContext
    ) -> None:
        self._model, self._prompt, self._format, self._tokenizer = model, prompt, format, tokenizer
        self._max_tokens, self._context = max_tokens, context
        self.transcript = Transcript(format.begin(prompt))
        self.finished, self.last_turn = False, ""

    @property
    def room(self) -> int:
        """Number of tokens that still fit."""
        return self._max_tokens - self.transcript.num_new_tokens

    async def reply(self, max_tokens: int | None = None) -> str:
        """Let the model write its next turn; return its text with special tokens, without the one that ended it.

        Args:
            max_tokens: Most tokens of the turn; ``None`` means as many as fit.
        """
        limit = self.room if max_tokens is None else min(self.room, max_tokens)
        completion = await self._model.generate(self.transcript.tokens, limit)
        self.transcript.append_sampled(completion)
        self._context.counts.turns += 1
        self.finished = completion.finish_reason == "stop"
        written = completion.token_ids[:-1] if self.finished else completion.token_ids
        self.last_turn = self._tokenizer.decode(written, skip_special_tokens=False)
        return self.last_turn

    def give(self, role: str, contents: list[str]) -> bool:
        """Append messages of a role, such as the answers of tools, after a finished turn of the model.

        Returns:
            False if they and a further token of the model do not fit; the episode is then cut here.
        """
        messages: list[Message] = [{"role": role, "content": content} for content in contents]
        tokens = self._format.go_on(self._prompt, messages)
        if len(tokens) >= self.room:
            self.finished = False
            return False
        self.transcript.append_given(tokens, Origin.TOOL if role == "tool" else Origin.USER)
        return True

    def episode(self, reward: float | None = None, success: bool | None = None) -> Episode:
        """Return the episode as it is now."""
        return Episode(self.transcript, self.finished, reward, success)


async def _run(tool: Tool, values: Mapping[str, Any]) -> Any:
    if inspect.iscoroutinefunction(tool.function):
        return await tool.function(**values)
    return await asyncio.to_thread(tool.function, **values)


def redrawn(context: EpisodeContext, seed: int) -> EpisodeContext:
    """Return the context of the next draw of the same episode; the counts go on."""
    counts = replace(context.counts, turns=0, calls=0, mistakes=0, draws=context.counts.draws + 1)
    return replace(context, draw=context.draw + 1, seed=seed, counts=counts)
