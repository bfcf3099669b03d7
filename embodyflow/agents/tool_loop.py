"""The default workflow: the model calls tools until it answers without a call."""

import asyncio
from collections.abc import Callable
from typing import Any

from embodyflow.agents.episode import Episode, EpisodeContext
from embodyflow.agents.tool import Tool, tools_by_name
from embodyflow.agents.tool_calls import PARSERS, ToolCall, UnreadableCall
from embodyflow.agents.workflow import ChatEngine
from embodyflow.config.agent import AgentConfig
from embodyflow.prompts.prompts import Prompt
from embodyflow.references import resolve


class ToolLoop:
    """Implements :class:`~embodyflow.agents.workflow.RolloutWorkflow`.

    Args:
        config: Section ``rollout.agent``.

    Raises:
        ConfigError: A tool has no types or descriptions, or a name occurs twice.
    """

    def __init__(self, config: AgentConfig) -> None:
        self._config, self._parse = config, PARSERS[config.parser]
        functions: list[Callable[..., Any]] = [resolve(reference) for reference in config.tools]
        self.tools = tools_by_name(functions)
        self._schemas = [tool.schema for tool in self.tools.values()] if config.describe_tools else []

    async def run(self, engine: ChatEngine, row: Prompt, context: EpisodeContext) -> Episode:
        """Play one episode: turns of the model, and answers to its calls."""
        conversation = engine.chat(row, self._schemas, context)
        for turn in range(self._config.max_turns):
            calls = self._parse(await conversation.reply(self._config.max_turn_tokens))
            if not conversation.finished or not calls:
                break
            if turn + 1 == self._config.max_turns:
                conversation.finished = False  # it still wanted to call
                break
            answers = await asyncio.gather(*(self._answer(call, context) for call in calls))
            if not conversation.give("tool", list(answers)):
                break
        return conversation.episode()

    async def _answer(self, call: ToolCall | UnreadableCall, context: EpisodeContext) -> str:
        if isinstance(call, UnreadableCall):
            return self._cut(context.mistake(f"error: {call.reason}"))
        tool: Tool | None = self.tools.get(call.name)
        if tool is None:
            allowed = ", ".join(self.tools) or "none"
            return self._cut(context.mistake(f"error: unknown tool {call.name}; there are: {allowed}"))
        return self._cut(await context.call(tool, call.arguments))

    def _cut(self, text: str) -> str:
        """Cut an answer to ``max_answer_chars`` at its end, and say so in it."""
        limit = self._config.max_answer_chars
        return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} characters cut)"
