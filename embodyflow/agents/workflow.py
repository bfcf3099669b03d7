"""Workflows: how an agent, a model and its tools play an episode.

A workflow of your own is a class that is built as ``Workflow(config)`` with the section ``rollout.agent`` and has the
method of :class:`RolloutWorkflow`; ``rollout.agent.workflow=my_module:Workflow`` uses it. A replaced rollout worker
plays its unfinished episodes again, with the turns and answers that the lost worker recorded. So an episode may depend
on nothing but its row, its context, the model and the answers of tools.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from embodyflow.agents.chat.chat_format import ChatFormat
from embodyflow.agents.chat.chat_memory import ChatMemory
from embodyflow.agents.chat.conversation import Conversation, Model
from embodyflow.agents.chat.transcript import Transcript
from embodyflow.agents.episode import Episode, EpisodeContext
from embodyflow.config.agents.agent import AgentConfig
from embodyflow.data.metrics import Metric
from embodyflow.prompts.prompts import Prompt


@dataclass(frozen=True)
class ChatEngine:
    """The model of one episode, through chats or tokens.

    Attributes:
        model: Model that samples turns; an episode may wait for one turn at a time.
        tokenizer: Tokenizer of the model.
        max_prompt_tokens: Most tokens of a prompt.
        max_tokens: Most tokens of an episode after its prompt.
        temperature: Temperature of the turns that are trained on.
        transcript: Tokens of the episode.
        agents: Names of the agents, which ``rollout.agent.agents`` lists; empty for a workflow of one agent.
        memory: Texts and tokens of chats that other episodes with this tokenizer asked for.
        models: Model of each agent with ``rollout.agent.weights=own``; empty if ``model`` samples all turns.
    """

    model: Model
    tokenizer: Any
    max_prompt_tokens: int
    max_tokens: int
    temperature: float = 1.0
    transcript: Transcript = field(default_factory=Transcript)
    agents: tuple[str, ...] = ()
    memory: ChatMemory = field(default_factory=ChatMemory)
    models: Mapping[str, Model] = field(default_factory=dict)

    def model_of(self, agent: str) -> Model:
        """Return the model that samples the turns of an agent."""
        return self.models.get(agent, self.model)

    def chat(
        self, row: Prompt, tools: Sequence[dict[str, Any]], context: EpisodeContext, agent: str = ""
    ) -> Conversation:
        """Begin a conversation.

        The first one continues the row's prompt. Further ones, such as those of another agent or a chat that goes on
        from a summary, are contexts of the same episode: all turns of the model are trained on, and each conversation's
        :meth:`~embodyflow.agents.chat.conversation.Conversation.episode` returns the whole episode.

        Args:
            row: Prompt, a chat; ``dataclasses.replace(row, messages=…)`` is one with other messages.
            tools: Schemas of the tools that the chat template describes.
            context: Context of the episode.
            agent: Name of the agent whose conversation it is, one of ``rollout.agent.agents``; empty without those.

        Raises:
            PromptTooLongError: The first prompt is too long. That of a further conversation leaves no
                :attr:`~embodyflow.agents.chat.conversation.Conversation.room`.
            ValueError: ``rollout.agent.agents`` does not list the agent.
        """
        if agent not in (self.agents or ("",)):
            raise ValueError(f"agent={agent!r}: rollout.agent.agents lists {', '.join(self.agents) or 'none'}")
        format = ChatFormat(self.tokenizer, tools, self.max_prompt_tokens, self.memory)
        return Conversation(self.model_of(agent), row, format, self.max_tokens, context, self.transcript, agent)


class RolloutWorkflow(Protocol):
    """Plays episodes. A rollout worker builds one, whose episodes run side by side in one thread."""

    async def run(self, engine: ChatEngine, row: Prompt, context: EpisodeContext) -> Episode | None:
        """Play one episode; return ``None`` to reject it.

        A rejected episode is drawn again, up to ``max_redraws`` times, so groups keep their size. Greedy decoding would
        repeat it: in a greedy evaluation it counts as a failed episode with a reward of 0. An exception ends the run
        with the episode's name, except an :class:`~embodyflow.errors.InfrastructureError`, after which the episode is
        drawn again.

        Args:
            engine: The model.
            row: Row of the data.
            context: Facts and services of this episode.
        """


@runtime_checkable
class Demonstrator(Protocol):
    """A workflow that demonstrates its episodes itself. Other workflows imitate the demonstrations of the data."""

    async def demonstrate(self, row: Prompt) -> tuple[str, ...]:
        """Return the turns of the model to imitate, each without the token that ends it."""


@runtime_checkable
class RowChecker(Protocol):
    """A workflow that needs more of a row than a chat."""

    def check(self, row: Prompt) -> None:
        """Check the first row before a run starts.

        Raises:
            ConfigError: The row lacks something; the message names the key and what is allowed.
        """


@runtime_checkable
class Closable(Protocol):
    """A workflow that holds something open, such as tools of MCP servers."""

    def close(self) -> None:
        """Close it, at the end of the rollout worker."""


@runtime_checkable
class Measured(Protocol):
    """A workflow that measures more of its episodes than their rewards."""

    def metrics(self) -> dict[str, Metric]:
        """Return the metrics since the last call, by name."""


WorkflowBuilder = Callable[[AgentConfig], RolloutWorkflow]
"""Class of a workflow, as ``rollout.agent.workflow`` names it."""
