"""Agent jobs: language jobs whose episodes are conversations with tools."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from embodyflow.config.base import Config, PositiveFloat, PositiveInt
from embodyflow.config.gymnasium_text import GymnasiumConfig
from embodyflow.config.language import LanguageConfig, ResponseRolloutConfig

NonNegativeInt = Annotated[int, Field(ge=0, strict=True)]
Reference = Annotated[str, Field(pattern=r"^[\w.]+:[\w.]+$")]
"""Reference ``module:name`` to a function or class."""


class ToolConfig(Config):
    """A tool and the limits of its calls. A bare reference stands for a tool with the default limits.

    Attributes:
        function: Function ``module:function`` that the model may call, with types and a docstring.
        timeout: Seconds that an attempt has for its answer. They begin when the attempt does, not in the queue.
        retries: Further attempts of a call that failed.
        concurrency: Most calls at a time in a rollout worker; further ones wait.
        max_answer_chars: Most characters of an answer that the model reads.
        keep: Part of a longer answer that the model reads: its ``head``, its ``tail``, or both ``ends``.
        mistakes: Exceptions ``module:Class`` of the function, with their subclasses, that are the model's mistake.
            :class:`embodyflow.agents.tool.ModelMistake` always is one. Any other is a failure of the infrastructure.
    """

    function: Reference
    timeout: PositiveFloat = 30.0
    retries: NonNegativeInt = 2
    concurrency: PositiveInt = 64
    max_answer_chars: PositiveInt = 4096
    keep: Literal["head", "tail", "ends"] = "head"
    mistakes: tuple[Reference, ...] = ()


def _from_reference(value: Any) -> Any:
    return {"function": value} if isinstance(value, str) else value


class AgentConfig(Config):
    """How an agent plays an episode.

    Attributes:
        workflow: Class ``module:Class`` that plays an episode; see :mod:`embodyflow.agents.workflow`.
        tools: Tools that the model may call, each a reference ``module:function`` or a mapping with limits.
        parser: Format of tool calls: ``hermes`` (also Qwen) or ``llama3``.
        describe_tools: Whether the chat template describes the tools to the model.
        max_turns: Most turns of the model in an episode.
        max_turn_tokens: Most tokens of a turn; ``null`` means as many as the episode has left.
        feedback: Message to the model after a wrong answer, of the workflow
            :class:`embodyflow.agents.self_correction.SelfCorrection`.
        gymnasium: Environment of the workflow :class:`embodyflow.agents.gymnasium_episode.GymnasiumEpisode`.
        max_redraws: Times that an episode is drawn again after a tool or an environment failed in all attempts.
    """

    workflow: Reference = "embodyflow.agents.tool_loop:ToolLoop"
    tools: tuple[Annotated[ToolConfig, BeforeValidator(_from_reference)], ...] = ()
    parser: Literal["hermes", "llama3"] = "hermes"
    describe_tools: bool = True
    max_turns: PositiveInt
    max_turn_tokens: PositiveInt | None = None
    feedback: Annotated[str, Field(min_length=1)] = "The answer is wrong. Check it and answer again."
    gymnasium: GymnasiumConfig | None = None
    max_redraws: NonNegativeInt = 2

    @model_validator(mode="after")
    def _check_gymnasium(self) -> "AgentConfig":
        if self.gymnasium is not None and self.workflow == AgentConfig.model_fields["workflow"].default:
            raise ValueError(
                "gymnasium: needs a workflow that plays in it; set "
                "rollout.agent.workflow=embodyflow.agents.gymnasium_episode:GymnasiumEpisode"
            )
        return self


class AgentRolloutConfig(ResponseRolloutConfig):
    """How rollout workers play conversations.

    ``max_response_tokens`` counts everything after the prompt: the model's turns and what it reads between them.

    Attributes:
        agent: How an agent plays an episode.
        keep_episodes: Number of newest iterations whose conversations stay in the run's folder.
    """

    agent: AgentConfig
    keep_episodes: NonNegativeInt = 20


class AgentJobConfig(LanguageConfig):
    """The configuration of a run that trains an agent."""

    kind: ClassVar[str] = "agent"
    rollout_engine: ClassVar[str] = "embodyflow.rollouts.agent_rollout:AgentRollout"
    check: ClassVar[str] = "embodyflow.rollouts.agent_checks:check_agent"

    rollout: AgentRolloutConfig

    @property
    def kept_iterations(self) -> int:
        """Number of newest iterations whose episodes the run keeps."""
        return self.rollout.keep_episodes

    def warm_start_facts(self) -> dict[str, Any]:
        """Return every part of the configuration that warm-started weights depend on; demonstrations use the tools."""
        rollout = self.rollout
        facts = {"agent": rollout.agent.model_dump(mode="json"), "max_response_tokens": rollout.max_response_tokens}
        return super().warm_start_facts() | facts
