"""Agent jobs: language jobs whose episodes are conversations with tools."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from embodyflow.config.base import Config, PositiveFloat, PositiveInt
from embodyflow.config.language import LanguageConfig, ResponseRolloutConfig


class AgentConfig(Config):
    """How an agent plays an episode.

    Attributes:
        workflow: Class ``module:Class`` that plays an episode; see :mod:`embodyflow.agents.workflow`.
        tools: Functions ``module:function`` that the model may call, with types and docstrings.
        parser: Format of tool calls: ``hermes`` (also Qwen) or ``llama3``.
        describe_tools: Whether the chat template describes the tools to the model.
        max_turns: Most turns of the model in an episode.
        max_turn_tokens: Most tokens of a turn; ``null`` means as many as the episode has left.
        max_answer_chars: Most characters of a tool's answer; the rest is cut.
        tool_timeout: Seconds that a tool has for an answer.
        tool_retries: Further attempts of a call whose tool failed.
        max_redraws: Times that an episode is drawn again after a tool failed in all attempts.
    """

    workflow: str = "embodyflow.agents.tool_loop:ToolLoop"
    tools: tuple[str, ...] = ()
    parser: Literal["hermes", "llama3"] = "hermes"
    describe_tools: bool = True
    max_turns: PositiveInt
    max_turn_tokens: PositiveInt | None = None
    max_answer_chars: PositiveInt = 4096
    tool_timeout: PositiveFloat = 30.0
    tool_retries: Annotated[int, Field(ge=0, strict=True)] = 2
    max_redraws: Annotated[int, Field(ge=0, strict=True)] = 2

    @field_validator("workflow")
    @classmethod
    def _check_reference(cls, reference: str) -> str:
        if reference.count(":") != 1:
            raise ValueError("must name a class as module:Class")
        return reference


class AgentRolloutConfig(ResponseRolloutConfig):
    """How rollout workers play conversations.

    ``max_response_tokens`` counts everything after the prompt: the model's turns and what it reads between them.

    Attributes:
        agent: How an agent plays an episode.
    """

    agent: AgentConfig


class AgentJobConfig(LanguageConfig):
    """The configuration of a run that trains an agent."""

    kind: ClassVar[str] = "agent"
    rollout_engine: ClassVar[str] = "embodyflow.rollouts.agent_rollout:AgentRollout"
    check: ClassVar[str] = "embodyflow.rollouts.agent_checks:check_agent"

    rollout: AgentRolloutConfig
