"""Workflows: how an agent, a model and its tools play an episode."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from embodyflow.agents.chat_format import ChatFormat
from embodyflow.agents.episode import Conversation, Episode, EpisodeContext, Model
from embodyflow.config.agent import AgentConfig
from embodyflow.prompts.prompts import Prompt


@dataclass(frozen=True)
class ChatEngine:
    """What a workflow talks to: the model, through a chat.

    Attributes:
        model: Model that samples turns.
        tokenizer: Tokenizer of the model.
        max_prompt_tokens: Most tokens of a prompt.
        max_tokens: Most tokens of an episode after its prompt.
    """

    model: Model
    tokenizer: Any
    max_prompt_tokens: int
    max_tokens: int

    def chat(self, row: Prompt, tools: Sequence[dict[str, Any]], context: EpisodeContext) -> Conversation:
        """Begin a conversation.

        Args:
            row: Prompt, a chat.
            tools: Schemas of the tools that the chat template describes.
            context: Context of the episode.
        """
        format = ChatFormat(self.tokenizer, tools, self.max_prompt_tokens)
        return Conversation(self.model, row, format, self.tokenizer, self.max_tokens, context)


class RolloutWorkflow(Protocol):
    """Plays episodes. A rollout worker builds one as ``Workflow(config)`` with the section ``rollout.agent``."""

    async def run(self, engine: ChatEngine, row: Prompt, context: EpisodeContext) -> Episode:
        """Play one episode; episodes of a worker run side by side.

        Args:
            engine: The model.
            row: Row of the data.
            context: Facts and services of this episode.
        """


WorkflowBuilder = Callable[[AgentConfig], RolloutWorkflow]
