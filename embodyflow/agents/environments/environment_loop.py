"""The workflow of environment classes: the model calls methods of an environment until it answers without a call."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from embodyflow.agents.environments.environment_class import Environments, check_names
from embodyflow.agents.environments.environment_session import EnvironmentSession
from embodyflow.agents.episode import Episode, EpisodeContext
from embodyflow.agents.tool_loop import ToolLoop
from embodyflow.agents.tools.tool import ModelTool
from embodyflow.agents.workflow import ChatEngine
from embodyflow.config.agents.agent import AgentConfig
from embodyflow.prompts.prompts import Prompt


class EnvironmentLoop(ToolLoop):
    """Implements :class:`~embodyflow.agents.workflow.RolloutWorkflow`.

    Each episode has an environment of its own, reset with the columns of its row. The text that ``reset`` returns is
    appended to the prompt's last message. ``get_reward``, where there is one, gives the reward; the reward function
    of the job judges other episodes.

    Args:
        config: Section ``rollout.agent``.

    Raises:
        ConfigError: A class is no environment, a method or tool lacks types or descriptions, or a name occurs twice.
    """

    def __init__(self, config: AgentConfig) -> None:
        super().__init__(config)
        self.environments = Environments(config)
        for environment in self.environments.all():
            check_names(self.tools, environment)

    def tools_of(self, row: Prompt) -> Mapping[str, ModelTool]:
        """Return the tools of a row's episodes by name: methods of its environment, and the agent's tools."""
        return {**self.environments.of(row).tools, **self.tools}

    async def run(self, engine: ChatEngine, row: Prompt, context: EpisodeContext) -> Episode:
        """Play one episode in an environment of its own."""
        session = EnvironmentSession(self.environments.of(row), row, context)
        asked = with_text(row, await session.begin())
        conversation = await self.converse(engine, asked, {**session.tools, **self.tools}, session.call, context)
        return conversation.episode(reward=await session.reward())


def with_text(row: Prompt, text: str | None) -> Prompt:
    """Return a chat with a text at the end of its last message."""
    if text is None:
        return row
    assert row.messages is not None
    *earlier, last = row.messages
    content: Any = last["content"]
    content = content + text if isinstance(content, str) else [*content, {"type": "text", "text": text}]
    return replace(row, messages=[*earlier, {**last, "content": content}])
