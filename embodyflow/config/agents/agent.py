"""Agent jobs: language jobs whose episodes are conversations with tools."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from embodyflow.config.addresses import check_address
from embodyflow.config.agents.gymnasium_text import GymnasiumConfig
from embodyflow.config.agents.pettingzoo_game import PettingZooConfig
from embodyflow.config.agents.ring import RingConfig
from embodyflow.config.base import Config, PositiveInt
from embodyflow.config.language import LanguageConfig, ResponseRolloutConfig
from embodyflow.config.run import GroupShape
from embodyflow.durations import Seconds
from embodyflow.prompts.verifiers.verifiers_config import VerifiersConfig, from_id

NonNegativeInt = Annotated[int, Field(ge=0, strict=True)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
LONGEST_BACKOFF = 30.0
Reference = Annotated[str, Field(pattern=r"^[\w.]+:[\w.]+$")]
"""Reference ``module:name`` to a function or class."""
AgentName = Annotated[str, Field(pattern=r"^\w+$")]
TOOL_LOOP = "embodyflow.agents.tool_loop:ToolLoop"
ENVIRONMENT_LOOP = "embodyflow.agents.environments.environment_loop:EnvironmentLoop"
PROGRAM = "embodyflow.agents.programs.program:Program"
RING = "embodyflow.agents.ring.ring:Ring"
VERIFIERS = "embodyflow.agents.verifiers.verifiers_workflow:VerifiersWorkflow"

PLAYERS = {"environment": ENVIRONMENT_LOOP, "program": PROGRAM, "verifiers": VERIFIERS, "ring": RING}
"""Workflow that plays episodes if the section has a key."""


class RetryLimits(Config):
    """Limits of further attempts.

    Attributes:
        retries: Further attempts after one that failed.
        backoff: Seconds before the second attempt. Each further one waits twice as long, at most 30 seconds. A server
            that restarts needs a few; ``0`` means no wait.
    """

    retries: NonNegativeInt = 2
    backoff: NonNegativeFloat = 0.5

    def wait_after(self, attempt: int) -> float:
        """Return the seconds between a failed attempt and the next one; attempts count from 0."""
        return min(self.backoff * 2.0 ** min(attempt, 30), LONGEST_BACKOFF)


class CallLimits(RetryLimits):
    """Limits of the calls of a tool.

    Attributes:
        timeout: Seconds that an attempt has for its answer. They begin when the attempt does, not in the queue.
        concurrency: Most calls at a time in a rollout worker; further ones wait.
        max_answer_chars: Most characters of an answer that the model reads.
        keep: Part of a longer answer that the model reads: its ``head``, its ``tail``, or both ``ends``.
    """

    timeout: Seconds = 30.0
    concurrency: PositiveInt = 64
    max_answer_chars: PositiveInt = 4096
    keep: Literal["head", "tail", "ends"] = "head"


class McpServerConfig(Config):
    """An MCP server (Model Context Protocol) whose tools the model may call; the extra ``mcp`` brings the SDK.

    Attributes:
        command: Program and arguments of a server that speaks over stdin and stdout. Each rollout worker starts one,
            again if it ends, and kills it at its own end.
        env: Further environment variables of the command; it gets ``PATH``, ``HOME``, ``USER``, ``SHELL`` and ``TERM``.
            A run records them, so secrets belong in ``inherit``.
        inherit: Names of environment variables that the command gets from the rollout worker, such as ``MY_API_KEY``.
        url: Address of a server that speaks streamable HTTP, instead of a command.
        include: Names of the tools that the model may call; ``null`` means all.
        on_error: Outcome of a call that the server answers with an error: the model's ``mistake``, which it reads, as
            the protocol means it, or a ``failure`` of the infrastructure.
    """

    command: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    env: dict[str, str] = Field(default={})
    inherit: tuple[str, ...] = ()
    url: str | None = None
    include: tuple[str, ...] | None = None
    on_error: Literal["mistake", "failure"] = "mistake"

    @property
    def name(self) -> str:
        """Name for messages."""
        return self.url or " ".join(self.command or ())

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str | None) -> str | None:
        if url is not None:
            check_address(url, "a server that needs none, or a command with inherit")
        return url

    @model_validator(mode="after")
    def _check_place(self) -> "McpServerConfig":
        if (self.command is None) == (self.url is None):
            raise ValueError("needs either a command or a url")
        if self.url is not None and (self.env or self.inherit):
            raise ValueError("env and inherit are variables of a command; allowed without url")
        return self


class ToolConfig(CallLimits):
    """A tool, or the tools of a server, and the limits of their calls. A bare reference stands for a function.

    Attributes:
        function: Function ``module:function`` that the model may call, with types and a docstring.
        mcp: Server whose tools the model may call, instead of a function. ``timeout`` also limits its start.
        mistakes: Exceptions ``module:Class`` of the function, with their subclasses, that are the model's mistake.
            :class:`embodyflow.agents.tools.tool.ModelMistake` always is one. Any other is a failure of the
            infrastructure.
    """

    function: Reference | None = None
    mcp: McpServerConfig | None = None
    mistakes: tuple[Reference, ...] = ()

    @model_validator(mode="after")
    def _check_kind(self) -> "ToolConfig":
        if (self.function is None) == (self.mcp is None):
            raise ValueError("needs either a function or mcp")
        if self.mcp is not None and self.mistakes:
            raise ValueError("mistakes are exceptions of a function; allowed with mcp is mcp.on_error")
        return self


class EnvironmentConfig(CallLimits):
    """An environment class whose public methods are tools. A bare reference stands for one with the default limits.

    Attributes:
        factory: Class ``module:Class``, or function ``module:function``, that makes the environment of an episode. A
            mapping from names to such references mixes tasks: the row's column ``environment`` has the name.
        concurrency: Most calls at a time in a rollout worker. With 1, ``random`` and ``numpy.random`` are seeded during
            each call, so a class that draws from them repeats. With more they are not: the class must draw from a
            generator that it seeds with ``seed``, an argument of its ``reset``.
        replay: Treatment of calls that a lost worker made. ``act`` makes them again for their effect on the new
            instance, and the recorded answers count. ``record`` does not make them again: for an environment whose
            calls act on a world outside of the instance.
    """

    factory: Reference | dict[str, Reference]
    concurrency: PositiveInt = 1
    replay: Literal["act", "record"] = "act"

    @property
    def factories(self) -> dict[str, str]:
        """References by name; a single one has the empty name."""
        return {"": self.factory} if isinstance(self.factory, str) else self.factory


class ProgramConfig(RetryLimits):
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
    timeout: Seconds = 60.0
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


def _from_factory(value: Any) -> Any:
    """Return the section that a reference, or a mapping from names to references, stands for."""
    is_factory = isinstance(value, str) or (isinstance(value, dict) and "factory" not in value)
    return {"factory": value} if is_factory else value


class AgentConfig(Config):
    """How an agent plays an episode.

    Attributes:
        workflow: Class ``module:Class`` that plays an episode; see :mod:`embodyflow.agents.workflow`. With an
            ``environment`` it is :class:`embodyflow.agents.environments.environment_loop.EnvironmentLoop` by default,
            with a ``program`` :class:`embodyflow.agents.programs.program.Program`, with ``verifiers``
            :class:`embodyflow.agents.verifiers.verifiers_workflow.VerifiersWorkflow`, with a ``ring``
            :class:`embodyflow.agents.ring.ring.Ring`.
        workflow_kwargs: Arguments of the class of an AReaL workflow, besides ``tokenizer`` and ``gconfig``. A reference
            ``module:function`` for an argument whose name ends with ``_fn`` stands for the function.
        environment: Environment class whose public methods are tools; ``null`` means none.
        program: Program that plays an episode with an OpenAI client; ``null`` means none.
        verifiers: Environment of the package verifiers that plays an episode; ``null`` means none.
        ring: Agents that write one after the other, round after round; ``null`` means none.
        tools: Tools that the model may call, each a reference ``module:function``, or a mapping with ``function`` or
            ``mcp`` and limits.
        mistakes: Exceptions ``module:Class`` of all tools and of the environment that are the model's mistake.
        parser: Format of tool calls: ``hermes`` (also Qwen), ``llama3``, or ``schema`` for the tokenizer's own
            ``response_template`` (transformers' ``parse_response``).
        describe_tools: Whether the chat template describes the tools to the model.
        agents: Names of the agents of a workflow with several, whose conversations it opens by name; empty for one
            agent. Those of a ``ring`` are its members, unless they are given.
        weights: Weights of the ``agents``: ``shared`` by all of them, or ``own`` weights for each, which start alike.
            Each agent then has its own optimizer, gradient norm and reference, and is trained on its own tokens alone.
        train_cycle: Iterations that an agent trains before the next one takes its turn, while the others' weights stay
            as they are; ``null`` trains all agents in each iteration. Only used with ``weights=own``.
        max_turns: Most turns of the model in an episode, or rounds of a ``ring``.
        max_turn_tokens: Most tokens of a turn; ``null`` means as many as the episode has left.
        feedback: Message to the model after a wrong answer, of the workflow
            :class:`embodyflow.agents.self_correction.SelfCorrection`.
        gymnasium: Environment of the workflow :class:`embodyflow.agents.gymnasium.gymnasium_episode.GymnasiumEpisode`.
        game: Class ``module:Class`` of a game, built with a seed, of the workflow
            :class:`embodyflow.agents.games.self_play.SelfPlay`; ``agents`` are its players.
        pettingzoo: Game of the package PettingZoo of that workflow, in place of ``game``.
        max_redraws: Times that an episode is drawn again after a tool, an environment or a program failed in all
            attempts, or the workflow rejected it.
    """

    workflow: Reference = TOOL_LOOP
    workflow_kwargs: dict[str, Any] = Field(default={})
    environment: Annotated[EnvironmentConfig, BeforeValidator(_from_factory)] | None = None
    program: Annotated[ProgramConfig, BeforeValidator(_from_command)] | None = None
    verifiers: Annotated[VerifiersConfig, BeforeValidator(from_id)] | None = None
    ring: RingConfig | None = None
    tools: tuple[Annotated[ToolConfig, BeforeValidator(_from_reference)], ...] = ()
    mistakes: tuple[Reference, ...] = ()
    parser: Literal["hermes", "llama3", "schema"] = "hermes"
    describe_tools: bool = True
    agents: tuple[AgentName, ...] = ()
    weights: Literal["shared", "own"] = "shared"
    train_cycle: PositiveInt | None = None
    max_turns: PositiveInt
    max_turn_tokens: PositiveInt | None = None
    feedback: Annotated[str, Field(min_length=1)] = "The answer is wrong. Check it and answer again."
    gymnasium: GymnasiumConfig | None = None
    game: Reference | None = None
    pettingzoo: PettingZooConfig | None = None
    max_redraws: NonNegativeInt = 2

    @model_validator(mode="before")
    @classmethod
    def _choose_loop(cls, values: Any) -> Any:
        """Play episodes by the workflow of what the section has."""
        for key, loop in PLAYERS.items():
            if isinstance(values, dict) and values.get(key) is not None:
                return {"workflow": loop, **values}
        return values

    @model_validator(mode="before")
    @classmethod
    def _name_members(cls, values: Any) -> Any:
        """Name the agents after the members of a ring."""
        ring = values.get("ring") if isinstance(values, dict) else None
        members = ring.get("members") if isinstance(ring, dict) else None
        return {**values, "agents": list(members)} if isinstance(members, dict) and not values.get("agents") else values

    @field_validator("agents")
    @classmethod
    def _check_agents(cls, agents: tuple[str, ...]) -> tuple[str, ...]:
        if twice := sorted(name for name in {*agents} if agents.count(name) > 1):
            raise ValueError(f"{twice[0]} is listed twice; each agent needs a name of its own")
        return agents

    @model_validator(mode="after")
    def _check_members(self) -> "AgentConfig":
        if self.ring is not None and self.agents != tuple(self.ring.members):
            raise ValueError(
                f"agents={list(self.agents)}: must be empty or the members of the ring, {list(self.ring.members)}"
            )
        return self

    @model_validator(mode="after")
    def _check_weights(self) -> "AgentConfig":
        if self.has_own_weights and len(self.agents) < 2:
            raise ValueError("weights=own: needs at least two agents, named by agents or the members of a ring")
        if self.train_cycle is not None and not self.has_own_weights:
            raise ValueError(f"train_cycle={self.train_cycle}: allowed is null with weights=shared, which has no turns")
        return self

    @property
    def has_own_weights(self) -> bool:
        """Whether each agent has weights of its own."""
        return self.weights == "own"

    @property
    def single_player(self) -> str | None:
        """The key whose workflow plays a single agent, if one is set."""
        return next((key for key in ("program", "verifiers") if getattr(self, key) is not None), None)

    def agents_in_training(self, iteration: int) -> tuple[str, ...]:
        """Return the agents with weights of their own that train in an iteration, from 1.

        With ``train_cycle`` c and A agents it is number ⌊(iteration − 1) / c⌋ mod A, from 0.
        """
        if self.train_cycle is None:
            return self.agents
        return (self.agents[(iteration - 1) // self.train_cycle % len(self.agents)],)

    @model_validator(mode="after")
    def _check_gymnasium(self) -> "AgentConfig":
        if self.gymnasium is not None and self.workflow == TOOL_LOOP:
            raise ValueError(
                "gymnasium: needs a workflow that plays in it; set "
                "rollout.agent.workflow=embodyflow.agents.gymnasium.gymnasium_episode:GymnasiumEpisode"
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

    @model_validator(mode="after")
    def _check_no_interrupt(self) -> "AgentRolloutConfig":
        if self.swaps_weights:
            raise ValueError(
                f"interrupt.every={self.interrupt.every}: allowed is null with job=agent, whose weights change when "
                "published: interrupt.when=published"
            )
        if self.interrupt.cache == "keep":
            raise ValueError(
                "interrupt.cache=keep: allowed is recompute with job=agent, whose conversations may lose their keys "
                "and values between turns"
            )
        return self


class AgentJobConfig(LanguageConfig):
    """The configuration of a run that trains an agent, or several.

    Attributes:
        own_weights_engine: Class ``module:Class`` of the trainer's engine with ``rollout.agent.weights=own``.
    """

    kind: ClassVar[str] = "agent"
    rollout_engine: ClassVar[str] = "embodyflow.rollouts.agents.agent_rollout:AgentRollout"
    group_engine: ClassVar[str | None] = "embodyflow.rollouts.streaming.agent_groups:AgentGroups"
    interrupted_group_engine: ClassVar[str | None] = (
        "embodyflow.rollouts.streaming.interrupted_groups:InterruptedAgentGroups"
    )
    own_weights_engine: ClassVar[str] = "embodyflow.training.agents_trainer:AgentsTrainer"
    check: ClassVar[str] = "embodyflow.rollouts.agents.agent_checks:check_agent"
    has_turns: ClassVar[bool] = True
    pipelines: ClassVar[tuple[str, ...]] = (*LanguageConfig.pipelines, "rae")

    rollout: AgentRolloutConfig

    @model_validator(mode="after")
    def _check_agents(self) -> "AgentJobConfig":
        if self.algorithm.per_agent and not self.rollout.agent.agents:
            raise ValueError("algorithm.per_agent=true: needs rollout.agent.agents, the names of the workflow's agents")
        return self

    @model_validator(mode="after")
    def _check_own_weights(self) -> "AgentJobConfig":
        if not self.has_own_weights:
            return self
        player, engine = self.rollout.agent.single_player, self.rollout.generation.name
        for is_wrong, given, allowed in (
            (engine != "hf", f"rollout.generation.name={engine}", "hf, which holds a model for each agent"),
            (player is not None, f"rollout.agent.{player}", "null, since it plays a single agent"),
            (self.trainer.lora is not None, "trainer.lora", "null; adapters belong to one policy"),
            (self.trainer.tensor_parallel_size > 1, "trainer.tensor_parallel_size", "1"),
            (self.algorithm.kl.target is not None, "algorithm.kl.target", "null, a coefficient that all agents share"),
            (self.rollout.swaps_when_published, "rollout.interrupt.when=published", "at_tokens"),
        ):
            if is_wrong:
                raise ValueError(f"{given}: allowed with rollout.agent.weights=own is {allowed}")
        return self

    @model_validator(mode="after")
    def _check_streamed_agent(self) -> "AgentJobConfig":
        if self.streams and self.rollout.agent.verifiers is not None:
            raise ValueError(
                "rollout.mode=streaming: allowed without rollout.agent.verifiers, whose metrics are those of whole "
                "iterations"
            )
        return self

    @property
    def agents(self) -> tuple[str, ...]:
        """Names of the agents that write the rows; empty for a single one without a name."""
        return self.rollout.agent.agents

    @property
    def has_own_weights(self) -> bool:
        """Whether each of the agents has weights of its own."""
        return self.rollout.agent.has_own_weights

    @property
    def groups(self) -> dict[str, GroupShape]:
        """Worker groups by name."""
        shapes = super().groups
        if self.has_own_weights:
            shapes["trainer"] = shapes["trainer"]._replace(engine=self.own_weights_engine)
        return shapes

    @property
    def kept_iterations(self) -> int:
        """Number of newest iterations whose episodes the run keeps."""
        return self.rollout.keep_episodes

    def warm_start_facts(self) -> dict[str, Any]:
        """Return every part of the configuration that warm-started weights depend on; demonstrations use the tools."""
        rollout = self.rollout
        facts = {"agent": rollout.agent.model_dump(mode="json"), "max_response_tokens": rollout.max_response_tokens}
        return super().warm_start_facts() | facts
