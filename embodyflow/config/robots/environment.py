"""The configuration of a job's environments."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from embodyflow.config.base import Config, PositiveFloat, PositiveInt
from embodyflow.durations import Seconds
from embodyflow.references import resolve

RESTORABILITY_CHECK = "embodyflow.simulation.make_env:unrestorable_tasks"  # imports Gymnasium


class AdapterConfig(Config):
    """Instructions, state, images and success of an environment that does not define them itself.

    See :class:`embodyflow.environments.adapter.Adaptation`.

    Attributes:
        wrappers: Functions ``module:function`` that take and return an environment, applied in this order.
        instructions: Sentences that the policy reads, by task; a task without one is its own instruction.
        task_kwargs: Arguments of ``gymnasium.make`` by task, in addition to ``env.kwargs``.
        success_info: Key of ``info`` that is true in a step that succeeds, with dots into nested ones; ``null`` if
            success is defined otherwise.
        success_absent: Meaning of a step whose ``info`` lacks the key of ``success_info``: ``refuse`` stops the run,
            ``not_yet`` counts the step as not successful.
        success_reward: Reward from which a step counts as success; ``null`` if success is defined otherwise.
        success_termination: Count every termination of the environment's episode as success.
        state: Keys of the observation that form the state, with dots into nested ones; ``null`` means all keys except
            images.
        images: Keys of the observation by image name; ``render`` stands for the picture of the environment's
            ``render()``.
        image_size: Side length in pixels that images are resized to; ``null`` keeps their size.
        expert: Function ``module:function`` from environment and observation to an action, for demonstrations;
            ``null`` if the environment has no expert.
    """

    wrappers: tuple[str, ...] = ()
    instructions: dict[str, str] = Field(default_factory=dict)
    task_kwargs: dict[str, dict[str, Any]] = Field(default_factory=dict)
    success_info: str | None = None
    success_absent: Literal["refuse", "not_yet"] = "refuse"
    success_reward: float | None = None
    success_termination: bool = False
    state: tuple[str, ...] | None = None
    images: dict[str, str] = Field(default_factory=dict)
    image_size: PositiveInt | None = None
    expert: str | None = None

    @model_validator(mode="after")
    def _check_success_keys(self) -> "AdapterConfig":
        named = [self.success_info is not None, self.success_reward is not None, self.success_termination]
        if sum(named) > 1:
            raise ValueError("success_info, success_reward and success_termination: only one may be set")
        if self.success_absent == "not_yet" and self.success_info is None:
            raise ValueError("success_absent=not_yet: needs success_info, the key that may be absent")
        return self

    @property
    def defines_success(self) -> bool:
        """Whether one of the three keys defines success."""
        return self.success_info is not None or self.success_reward is not None or self.success_termination

    def adaptation(self, task: str) -> dict[str, Any]:
        """Return the fields of :class:`embodyflow.environments.adapter.Adaptation` for a task."""
        chosen = self.model_dump(exclude={"instructions", "task_kwargs"})
        return {**chosen, "instruction": self.instructions.get(task)}


class VectorConfig(Config):
    """A natively batched environment, made by ``gymnasium.make_vec``, in place of single environments.

    Attributes:
        mode: ``entry_point`` builds the batch by the registration's ``vector_entry_point``; ``sync`` builds Gymnasium's
            ``SyncVectorEnv``, which steps single environments one after the other.
        resets: ``seeded`` begins each episode by ``reset(seed=[...], options={"reset_mask": mask})``, with seeds as of
            single environments. ``automatic`` lets the batch reset its lanes itself, for batches that do not know the
            mask or seeds by lane; the batch is then reset as a whole from time to time.
        autoreset: Autoreset mode of ``mode=sync``; ``null`` is Gymnasium's, which is ``NextStep``.
    """

    mode: Literal["entry_point", "sync"]
    resets: Literal["seeded", "automatic"] = "seeded"
    autoreset: Literal["NextStep", "SameStep", "Disabled"] | None = None

    @model_validator(mode="after")
    def _check_autoreset(self) -> "VectorConfig":
        if self.autoreset is not None and self.mode != "sync":
            raise ValueError(f"autoreset={self.autoreset}: allowed is null with mode={self.mode}, which has its own")
        if self.autoreset == "Disabled" and self.resets == "automatic":
            raise ValueError("autoreset=Disabled: allowed is resets=seeded, or NextStep or SameStep")
        return self


MEMBER_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,49}$"
"""Names of members. They have no slash, which separates a member from its task."""


class MemberConfig(Config):
    """One kind of environment, made by its Gymnasium id.

    Attributes:
        id: Gymnasium id, with the prefix ``module:`` if a module must be imported to register it.
        tasks: Instructions that the policy follows, one environment each; empty for a control task, which has one
            environment and no instruction.
        kwargs: Arguments passed on to ``gymnasium.make``.
        max_steps: Environment steps after which an episode is truncated.
        reset_options: Options that every ``reset(options=...)`` receives, besides the goal. They are part of what
            restores an episode.
        adapter: Adapter that adds instructions, initial states and success; ``null`` if the environment defines them.
    """

    id: str
    tasks: tuple[str, ...]
    kwargs: dict[str, Any] = Field(default_factory=dict)
    max_steps: PositiveInt
    reset_options: dict[str, Any] = Field(default_factory=dict)
    adapter: AdapterConfig | None = None

    @model_validator(mode="after")
    def _check_tasks(self) -> "MemberConfig":
        if twice := [task for task in self.tasks if self.tasks.count(task) > 1]:
            raise ValueError(f"tasks: {twice[0]!r} is listed {self.tasks.count(twice[0])} times; allowed is once")
        return self

    @model_validator(mode="after")
    def _check_reset_options(self) -> "MemberConfig":
        if "goal" in self.reset_options and (self.tasks or self.adapter is not None):
            raise ValueError("reset_options.goal: the run chooses it; allowed are other options")
        return self

    @model_validator(mode="after")
    def _check_adapter(self) -> "MemberConfig":
        if self.adapter is None:
            return self
        if self.tasks and not self.adapter.defines_success:
            raise ValueError(
                "adapter: needs success_info, success_reward or success_termination to define when a task succeeds"
            )
        for key in ("instructions", "task_kwargs"):
            unknown = set(getattr(self.adapter, key)) - set(self.tasks)
            if unknown:
                raise ValueError(f"adapter.{key}: {sorted(unknown)[0]!r} is not among env.tasks {list(self.tasks)}")
        return self


class EnvConfig(MemberConfig):
    """The environments of a run: one kind, or several, its members.

    With ``members`` the keys ``id``, ``tasks`` and ``max_steps`` are derived from them: the names of the members joined
    by ``+``, the tasks ``<member>/<task>`` and the largest ``max_steps``.

    Attributes:
        members: Several kinds of environments in one run, by name; each has the keys ``id``, ``tasks``, ``kwargs``,
            ``max_steps``, ``reset_options`` and ``adapter`` in place of those of ``env``. Empty for one kind. Embodied
            jobs only.
        vector: A natively batched environment that holds all environments of a rollout worker; ``null`` makes single
            ones. Control jobs only.
        step_timeout: Seconds that an environment in its own process may take for an action chunk, or a batch for a
            step.
        reset_timeout: Seconds that an environment in its own process may take to be built or reset.
        max_restarts: Restarts of environment processes per rollout worker before the run fails.
        max_memory_gb: GB (10⁹ bytes) of memory at which an environment process is restarted, which undoes a leak; its
            episodes continue as if nothing had happened. Needs ``rollout.env_processes``; ``null`` means no limit.
        allow_unrestorable: Train also in environments whose ``reset(seed=...)`` does not restore an episode. Groups
            then begin in different states, replays differ from the record, and every report of the run says so.
    """

    members: dict[Annotated[str, Field(pattern=MEMBER_NAME)], MemberConfig] = Field(default_factory=dict)
    vector: VectorConfig | None = None
    step_timeout: Seconds = 60.0
    reset_timeout: Seconds = 300.0
    max_restarts: PositiveInt = 100
    max_memory_gb: PositiveFloat | None = None
    allow_unrestorable: bool = False

    @model_validator(mode="before")
    @classmethod
    def _derive_from_members(cls, values: Any) -> Any:
        given = values.get("members", {}) if isinstance(values, Mapping) else {}
        if not isinstance(given, Mapping):  # the validation of the field reports it, and nothing else
            return {"id": "", "tasks": (), "max_steps": 1, **values}
        if not given:
            return values
        try:
            members = {name: MemberConfig.model_validate(each) for name, each in given.items()}
        except ValidationError:  # the validation of the field reports it
            return {"id": "", "tasks": (), "max_steps": 1, **values}
        derived = _derived(members)
        outside: dict[str, Any] = {**derived, "kwargs": {}, "reset_options": {}, "adapter": None, "vector": None}
        for key, allowed in outside.items():
            found = values.get(key, allowed)
            if (list(found) if isinstance(found, tuple) else found) != allowed:
                place = "" if key == "vector" else f", or env.members.<name>.{key}"
                raise ValueError(f"{key}: must not be set beside members; allowed is to leave it out{place}")
        return {**values, **derived}

    @model_validator(mode="after")
    def _check_members(self) -> "EnvConfig":
        if len(self.members) == 1:
            raise ValueError("members: there is one; allowed are two or more, or its keys in env itself")
        for name, member in self.members.items():
            if not member.tasks:
                raise ValueError(f"members.{name}.tasks: must list the instructions to follow")
        return self

    @model_validator(mode="after")
    def _check_vector(self) -> "EnvConfig":
        if self.vector is None:
            return self
        if self.tasks:
            raise ValueError("vector: allowed is null with tasks, because embodied jobs step single environments only")
        if self.adapter is not None:
            raise ValueError("vector: allowed is null with adapter, which adapts single environments only")
        return self

    @property
    def parts(self) -> dict[str, "EnvConfig"]:
        """The configuration of each member by its name, in their order; without members this one, by an empty name."""
        if not self.members:
            return {"": self}
        shared = {name: getattr(self, name) for name in EnvConfig.model_fields if name not in MemberConfig.model_fields}
        return {
            name: EnvConfig.model_construct(**{**shared, **dict(member), "members": {}})
            for name, member in self.members.items()
        }

    def part_of(self, task: str) -> tuple[str, str]:
        """Return the name of a task's member and the task's name within it; the first is empty without members."""
        if not self.members:
            return "", task
        name, _, own = task.partition("/")
        return name, own

    def max_steps_of(self, task_id: int) -> int:
        """Return the environment steps after which an episode of a task is truncated."""
        name, _ = self.part_of(self.tasks[task_id])
        return self.members[name].max_steps if name else self.max_steps

    @property
    def turns(self) -> tuple[int, ...]:
        """Indices of tasks in the order in which groups take them.

        Members alternate, and each goes through its own tasks, so all members have equally many groups. Without members
        every task comes once.
        """
        tasks_of: dict[str, list[int]] = {name: [] for name in self.parts}
        for index, task in enumerate(self.tasks):
            tasks_of[self.part_of(task)[0]].append(index)
        rounds = math.lcm(*map(len, tasks_of.values()))
        return tuple(tasks[turn % len(tasks)] for turn in range(rounds) for tasks in tasks_of.values())


def _derived(members: Mapping[str, MemberConfig]) -> dict[str, Any]:
    """Return the keys of ``env`` that follow from its members."""
    return {
        "id": "+".join(map(str, members)),
        "tasks": [f"{name}/{task}" for name, member in members.items() for task in member.tasks],
        "max_steps": max(member.max_steps for member in members.values()),
    }


def prefixed_tasks(name: str, tasks: Mapping[str, str]) -> dict[str, str]:
    """Return values by the tasks of a member under their names in the run; an empty name changes nothing."""
    return {f"{name}/{task}" if name else task: value for task, value in tasks.items()}


def unrestorable_tasks(env: EnvConfig, rollout: "SteppingConfig") -> dict[str, str]:
    """Return the tasks whose episodes are not restored by their seed, each with the culprit and what differs.

    Args:
        env: Environments that the checks of the run accept.
        rollout: Section ``rollout``, which says how the environments share processes.

    Returns:
        Lines by task; empty unless ``env.allow_unrestorable``, because the checks refuse such environments without it.
    """
    if not env.allow_unrestorable:
        return {}
    found: dict[str, str] = resolve(RESTORABILITY_CHECK)(
        env, rollout.env_processes, isolated=rollout.isolates(len(env.tasks))
    )
    return found


def check_memory_limit(env: EnvConfig, num_processes: int) -> None:
    """Check that environments with a limit of memory have processes to restart.

    Args:
        env: Environments.
        num_processes: Value of ``rollout.env_processes``.

    Raises:
        ValueError: They are stepped in the worker itself.
    """
    if env.max_memory_gb is not None and num_processes == 0:
        raise ValueError(
            f"env.max_memory_gb={env.max_memory_gb:g}: needs rollout.env_processes of 1 or more; allowed is null with "
            "rollout.env_processes=0, where a restart would end the worker with its environments"
        )


def check_batch_processes(env: EnvConfig, num_processes: int) -> None:
    """Check that a batch is not split among processes.

    Args:
        env: Environments.
        num_processes: Value of ``rollout.env_processes``.

    Raises:
        ValueError: There are several processes.
    """
    if env.vector is not None and num_processes > 1:
        raise ValueError(
            f"rollout.env_processes={num_processes}: allowed are 0 and 1 with env.vector, because one process holds "
            "the batch of a rollout worker"
        )


class SteppingConfig(Config):
    """How a rollout worker steps its environments.

    Attributes:
        envs_per_worker: Environments of each rollout worker.
        env_processes: Processes per rollout worker that step its environments. One that dies or hangs is restarted
            and its episodes continue. 0 steps them in the worker itself, which is bit-identical and saves a message.
    """

    envs_per_worker: PositiveInt
    env_processes: Annotated[int, Field(ge=0, strict=True)] = 0

    def isolates(self, num_tasks: int) -> bool:
        """Return True if every environment of a worker has a process of its own; each task has at least one."""
        return self.env_processes >= max(self.envs_per_worker, num_tasks)

    @model_validator(mode="after")
    def _check_env_processes(self) -> "SteppingConfig":
        if self.env_processes > self.envs_per_worker:
            raise ValueError(
                f"env_processes={self.env_processes} must be at most envs_per_worker={self.envs_per_worker}"
            )
        return self
