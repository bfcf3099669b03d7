"""The default workflow: the model calls tools until it answers without a call."""

import asyncio
from typing import Any

from embodyflow.agents.episode import Episode, EpisodeContext
from embodyflow.agents.tool import Tool, build_tools
from embodyflow.agents.tool_calls import PARSERS, ToolCall, UnreadableCall
from embodyflow.agents.workflow import ChatEngine
from embodyflow.config.agent import AgentConfig
from embodyflow.prompts.prompts import Prompt


class ToolLoop:
    """Implements :class:`~embodyflow.agents.workflow.RolloutWorkflow`.

    Args:
        config: Section ``rollout.agent``.

    Raises:
        ConfigError: A tool has no types or descriptions, or a name occurs twice.
    """

    def __init__(self, config: AgentConfig) -> None:
        self._config, self._parse = config, PARSERS[config.parser]
        self.tools = build_tools(config.tools)
        self.schemas: list[dict[str, Any]] = [tool.schema for tool in self.tools.values()]

    async def run(self, engine: ChatEngine, row: Prompt, context: EpisodeContext) -> Episode:
        """Play one episode: turns of the model, and answers to its calls."""
        conversation = engine.chat(row, self.schemas if self._config.describe_tools else [], context)
        for turn in range(self._config.max_turns):
            calls = self._parse(await conversation.reply(self._config.max_turn_tokens))
            if not conversation.finished or not calls:
                break
            if turn + 1 == self._config.max_turns:
                conversation.finished = False  # it still wanted to call
                break
            if not conversation.give("tool", await self._answers(calls, context)):
                break
        return conversation.episode()

    async def _answers(self, calls: list[ToolCall | UnreadableCall], context: EpisodeContext) -> list[str]:
        """Answer the calls of a turn side by side; a failure is raised after all of them have ended."""
        ended = await asyncio.gather(*(self._answer(call, context) for call in calls), return_exceptions=True)
        answers = []
        for answer in ended:
            if isinstance(answer, BaseException):
                raise answer
            answers.append(answer)
        return answers

    async def _answer(self, call: ToolCall | UnreadableCall, context: EpisodeContext) -> str:
        if isinstance(call, UnreadableCall):
            return context.mistake(f"error: {call.reason}")
        tool: Tool | None = self.tools.get(call.name)
        if tool is None:
            return context.mistake(f"error: unknown tool; there are: {', '.join(self.tools) or 'none'}")
        return await context.call(tool, call.arguments)
