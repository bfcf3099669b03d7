"""Agent jobs: language jobs whose episodes are conversations with tools."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from embodyflow.config.base import Config, PositiveFloat, PositiveInt
from embodyflow.config.language import LanguageConfig, ResponseRolloutConfig

NonNegativeInt = Annotated[int, Field(ge=0, strict=True)]
Reference = Annotated[str, Field(pattern=r"^[\w.]+:[\w.]+$")]
"""Reference ``module:name`` to a function or class."""
PROGRAM = "embodyflow.agents.programs.program:Program"


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


class ProgramConfig(Config):
    """A program that plays an episode with an OpenAI client. A bare list is its command, a bare reference a function.

    Attributes:
        command: Command, such as ``[python, my_agent.py]``. ``python`` is the one that runs embodyflow.
        function: Function ``module:function``, called as ``await run(client, row)`` in a process of its own, in place
            of a command.
        timeout: Seconds that the program may take between two turns of the model, from its start to the first and from
            the last to its end. A program that takes longer has failed.
        reward: Source of rewards. ``printed`` takes the last line that the program prints, or the value that the
            function returns, and leaves an episode without either to the reward function of the job. ``function``
            leaves all of them to it.
    """

    command: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    function: Reference | None = None
    timeout: PositiveFloat = 60.0
    reward: Literal["printed", "function"] = "printed"

    @model_validator(mode="after")
    def _check_kind(self) -> "ProgramConfig":
        if bool(self.command) == (self.function is not None):
            raise ValueError("needs either a command, such as [python, my_agent.py], or a function module:function")
        return self


def _from_command(value: Any) -> Any:
    """Return the section that a command or a reference stands for."""
    if isinstance(value, list | tuple):
        return {"command": value}
    return {"function": value} if isinstance(value, str) else value


def _from_reference(value: Any) -> Any:
    return {"function": value} if isinstance(value, str) else value


class AgentConfig(Config):
    """How an agent plays an episode.

    Attributes:
        workflow: Class ``module:Class`` that plays an episode; see :mod:`embodyflow.agents.workflow`. With a
            ``program`` it is :class:`embodyflow.agents.programs.program.Program` by default.
        program: Program that plays an episode with an OpenAI client; ``null`` means none.
        tools: Tools that the model may call, each a reference ``module:function`` or a mapping with limits.
        parser: Format of tool calls: ``hermes`` (also Qwen) or ``llama3``.
        describe_tools: Whether the chat template describes the tools to the model.
        max_turns: Most turns of the model in an episode.
        max_turn_tokens: Most tokens of a turn; ``null`` means as many as the episode has left.
        max_redraws: Times that an episode is drawn again after a tool failed in all attempts.
    """

    workflow: Reference = "embodyflow.agents.tool_loop:ToolLoop"
    program: Annotated[ProgramConfig, BeforeValidator(_from_command)] | None = None
    tools: tuple[Annotated[ToolConfig, BeforeValidator(_from_reference)], ...] = ()
    parser: Literal["hermes", "llama3"] = "hermes"
    describe_tools: bool = True
    max_turns: PositiveInt
    max_turn_tokens: PositiveInt | None = None
    max_redraws: NonNegativeInt = 2

    @model_validator(mode="before")
    @classmethod
    def _choose_program(cls, values: Any) -> Any:
        """Play episodes by the workflow of programs if there is one."""
        if isinstance(values, dict) and values.get("program") is not None:
            return {"workflow": PROGRAM, **values}
        return values


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
