"""The environment of a job."""

from typing import Annotated, Any

from pydantic import Field, model_validator

from embodyflow.config.base import Config, PositiveFloat, PositiveInt


class AdapterConfig(Config):
    """What an environment does not say of itself: see :class:`embodyflow.environments.adapter.Adaptation`.

    Attributes:
        wrappers: ``module:function`` of environment to environment, applied in this order.
        instructions: task to the sentence that the policy reads; a task that is not in it is its own instruction.
        task_kwargs: task to what goes to ``gymnasium.make`` for it, beside ``env.kwargs``.
        success_info: key of ``info`` that is true in the step that succeeds.
        success_reward: reward of a step that succeeds, or more.
        success_termination: whatever terminates the environment's episode is success.
        state: keys of the observation that make the state, dots reaching into nested ones; ``null`` takes all that are
            no images.
        images: name to key of the observation, or ``render`` for what the environment's ``render()`` draws.
        image_size: pixels a side that images are resized to.
        expert: ``module:function`` of environment and observation to an action, for demonstrations.
    """

    wrappers: tuple[str, ...] = ()
    instructions: dict[str, str] = Field(default_factory=dict)
    task_kwargs: dict[str, dict[str, Any]] = Field(default_factory=dict)
    success_info: str | None = None
    success_reward: float | None = None
    success_termination: bool = False
    state: tuple[str, ...] | None = None
    images: dict[str, str] = Field(default_factory=dict)
    image_size: PositiveInt | None = None
    expert: str | None = None

    @model_validator(mode="after")
    def _one_success(self) -> "AdapterConfig":
        named = [self.success_info is not None, self.success_reward is not None, self.success_termination]
        if sum(named) > 1:
            raise ValueError("success_info, success_reward and success_termination: only one may be set")
        return self

    @property
    def says_success(self) -> bool:
        """Whether it is defined when an episode succeeds."""
        return self.success_info is not None or self.success_reward is not None or self.success_termination

    def adaptation(self, task: str) -> dict[str, Any]:
        """Return the fields of :class:`embodyflow.environments.adapter.Adaptation` for a task."""
        chosen = self.model_dump(exclude={"instructions", "task_kwargs"})
        return {**chosen, "instruction": self.instructions.get(task)}


class EnvConfig(Config):
    """The environment, reached by its Gymnasium id.

    Attributes:
        id: Gymnasium id, with ``module:`` in front when a module must be imported to register it.
        tasks: one environment per instruction; the policy is conditioned on the instruction. Empty for a control task
            of Gymnasium's, which has one environment and no instruction.
        kwargs: passed on to ``gymnasium.make``.
        max_steps: environment steps after which an episode is truncated.
        adapter: makes any environment one with instructions, initial states and success; ``null`` for those that have
            them.
        step_timeout: seconds an environment in a process of its own may take for an action chunk.
        reset_timeout: seconds it may take for being built, and for a reset.
        max_restarts: how often a rollout worker starts such processes again before the run ends.
    """

    id: str
    tasks: tuple[str, ...]
    kwargs: dict[str, Any] = Field(default_factory=dict)
    max_steps: PositiveInt
    adapter: AdapterConfig | None = None
    step_timeout: PositiveFloat = 60.0
    reset_timeout: PositiveFloat = 300.0
    max_restarts: PositiveInt = 100

    @model_validator(mode="after")
    def _adapter_fits(self) -> "EnvConfig":
        if self.adapter is None:
            return self
        if self.tasks and not self.adapter.says_success:
            raise ValueError(
                "adapter: needs success_info, success_reward or success_termination, to say when a task is done"
            )
        for key in ("instructions", "task_kwargs"):
            unknown = set(getattr(self.adapter, key)) - set(self.tasks)
            if unknown:
                raise ValueError(f"adapter.{key}: {sorted(unknown)[0]!r} is not among env.tasks {list(self.tasks)}")
        return self


class SteppingConfig(Config):
    """How a rollout worker steps its environments.

    Attributes:
        envs_per_worker: environments of each rollout worker.
        env_processes: processes of a rollout worker that step them; one that dies or hangs is started again, and its
            episodes go on. 0 steps them in the worker itself: the same numbers, one message less.
    """

    envs_per_worker: PositiveInt
    env_processes: Annotated[int, Field(ge=0, strict=True)] = 0

    @model_validator(mode="after")
    def _processes_have_environments(self) -> "SteppingConfig":
        if self.env_processes > self.envs_per_worker:
            raise ValueError(
                f"env_processes={self.env_processes} must be at most envs_per_worker={self.envs_per_worker}"
            )
        return self
