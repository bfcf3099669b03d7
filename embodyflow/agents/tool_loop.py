"""The default workflow: the model calls tools until it answers without a call."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from embodyflow.agents.chat.conversation import Conversation
from embodyflow.agents.episode import Episode, EpisodeContext
from embodyflow.agents.tools.tool import ModelTool, build_tools, close_tools
from embodyflow.agents.tools.tool_calls import ToolCall, UnreadableCall, build_parser
from embodyflow.agents.workflow import ChatEngine
from embodyflow.config.agents.agent import AgentConfig
from embodyflow.prompts.prompts import Prompt

CallTool: TypeAlias = Callable[[ModelTool, Mapping[str, Any]], Awaitable[str]]
"""Calls a tool and returns the text for the model."""


class ToolLoop:
    """Implements :class:`~embodyflow.agents.workflow.RolloutWorkflow`.

    Args:
        config: Section ``rollout.agent``.

    Raises:
        ConfigError: A tool has no types or descriptions, or a name occurs twice.
    """

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self.tools = build_tools(config.tools, config.mistakes)

    def tools_of(self, row: Prompt) -> Mapping[str, ModelTool]:
        """Return the tools of a row's episodes by name."""
        return self.tools

    def close(self) -> None:
        """Close the tools."""
        close_tools(self.tools.values())

    async def run(self, engine: ChatEngine, row: Prompt, context: EpisodeContext) -> Episode:
        """Play one episode: turns of the model, and answers to its calls."""
        return (await self.converse(engine, row, self.tools, context.call, context)).episode()

    async def converse(
        self,
        engine: ChatEngine,
        row: Prompt,
        tools: Mapping[str, ModelTool],
        call_tool: CallTool,
        context: EpisodeContext,
    ) -> Conversation:
        """Let the model and its tools take turns; return the conversation after the last one."""
        schemas = [tool.schema for tool in tools.values()]
        parse = build_parser(self._config.parser, engine.tokenizer, schemas)
        conversation = engine.chat(row, schemas if self._config.describe_tools else [], context)
        for turn in range(self._config.max_turns):
            text = await conversation.reply(self._config.max_turn_tokens)
            calls = parse(text, conversation.text_before)
            if not conversation.finished or not calls:
                break
            if turn + 1 == self._config.max_turns:
                conversation.finished = False  # it still wanted to call
                break
            if not conversation.give("tool", await _answers(calls, tools, call_tool, context)):
                break
        return conversation


async def _answers(
    calls: list[ToolCall | UnreadableCall],
    tools: Mapping[str, ModelTool],
    call_tool: CallTool,
    context: EpisodeContext,
) -> list[str]:
    """Answer the calls of a turn side by side; a failure is raised after all of them have ended."""
    if len(calls) == 1:
        return [await _answer(calls[0], tools, call_tool, context)]
    ended = await asyncio.gather(*(_answer(call, tools, call_tool, context) for call in calls), return_exceptions=True)
    answers = []
    for answer in ended:
        if isinstance(answer, BaseException):
            raise answer
        answers.append(answer)
    return answers


async def _answer(
    call: ToolCall | UnreadableCall, tools: Mapping[str, ModelTool], call_tool: CallTool, context: EpisodeContext
) -> str:
    if isinstance(call, UnreadableCall):
        return context.mistake(f"error: {call.reason}")
    tool = tools.get(call.name)
    if tool is None:
        return context.mistake(f"error: unknown tool; there are: {', '.join(tools) or 'none'}")
    return await call_tool(tool, call.arguments)
