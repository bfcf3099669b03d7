"""The request for a training run, checked before anything starts."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Annotated, Any, Literal, cast

from pydantic import Field

from embodyflow.config import RunConfig
from embodyflow.config.base import RUN_NAME_PATTERN
from embodyflow.config.composition.compose import (
    chosen_flow,
    compose_config,
    default_algorithm,
    experiments,
    validate_config,
)
from embodyflow.config.composition.words import word_of
from embodyflow.config.robots.embodied import EmbodiedConfig
from embodyflow.errors import ConfigError, DiskFullError
from embodyflow.orchestration.request.branching import branched_config, branches, fill_branch, origin_of
from embodyflow.orchestration.request.compatibility import check_compatibility
from embodyflow.orchestration.request.form_fields import FormField
from embodyflow.orchestration.request.replay_space import check_replay_space
from embodyflow.orchestration.request.run_name import free_name
from embodyflow.orchestration.request.unread_words import refuse_unread
from embodyflow.record.run_folder import RunFolder
from embodyflow.references import resolve

Experiment = Annotated[
    str,
    FormField(
        "Experiment, a file in `configs/experiment`. It chooses environment or prompts, policy and sizes",
        choices=experiments(),
    ),
]
Iterations = Annotated[
    int | None, Field(ge=1), FormField("Number of RL iterations. Empty means the experiment's number")
]
Seed = Annotated[
    int | None, Field(ge=0, lt=2**31), FormField("Seed of every random draw. Empty means the experiment's seed")
]
RunId = Annotated[
    str | None,
    Field(pattern=RUN_NAME_PATTERN),
    FormField("Name of the run's folder: letters, digits, `.`, `_` and `-`. Empty means the name of the flow run"),
]
Resume = Annotated[
    str | None,
    Field(pattern=RUN_NAME_PATTERN),
    FormField(
        "`run_id` of a run to resume from its last commit. It keeps its configuration, so only `iterations` may be set "
        "besides, to train longer"
    ),
]
Overrides = Annotated[
    tuple[str, ...],
    FormField(
        "Other configuration keys, one `key=value` per entry in Hydra's grammar, such as `trainer.epochs=2`, "
        "`rollout.num_workers=4` or `env.tasks=[reach-v3,push-v3]`. `embodyflow config experiment=push` prints all "
        "keys and their meanings. A wrong key or value ends the flow run at once, in one line that says what is allowed"
    ),
]

IfExists = Literal["refuse", "resume"]
"""What a command line does if its run exists."""

FLOW_KEYS = ("experiment", "algorithm", "iterations", "seed", "run_id", "resume")

DEFAULT_RUN_ROOT = str(RunConfig.model_fields["run_root"].default)

FLOW_RUN_FILE = "flow_run"
"""File in a run's folder that holds the id of the Prefect flow run that created it."""
SCHEDULE_LENGTH = "trainer.schedule_iterations"
"""Key that a resumed run may set, because its ``iterations`` would otherwise stretch the schedule."""


@dataclass(frozen=True)
class RunRequest:
    """The parameters of a training flow.

    Attributes:
        experiment: Name of a file in ``configs/experiment``.
        algorithm: Name of a file in ``configs/algorithm``; ``None`` is the experiment's default if this flow runs it,
            else the flow's own.
        iterations, seed, run_id: Values for the configuration's keys of these names.
        resume: Id of a run to continue with its own configuration.
        overrides: Further overrides in Hydra's grammar.
        if_exists: Whether a command line refuses a run that exists or resumes it
            (:mod:`embodyflow.orchestration.request.existing_run`); flows do not know it.
        flow: Training flow that runs the request.
    """

    experiment: str = "embodied"
    algorithm: str | None = None
    iterations: int | None = None
    seed: int | None = None
    run_id: str | None = None
    resume: str | None = None
    overrides: Sequence[str] = field(default_factory=tuple)
    if_exists: IfExists = "refuse"
    flow: str = "grpo"

    def hydra_overrides(self) -> list[str]:
        """Return the request as a list of Hydra overrides."""
        run_id = None if self.run_id is None else f"'{self.run_id}'"  # quotes keep 2026 and 1e5 strings
        named = {"iterations": self.iterations, "seed": self.seed, "run_id": run_id}
        return [
            f"experiment={self.experiment}",
            f"algorithm={self.algorithm or default_algorithm(self.experiment, self.flow)}",
            *self.overrides,
            *(f"{key}={value}" for key, value in named.items() if value is not None),
        ]

    def parameters(self) -> dict[str, Any]:
        """Return the request as parameters of its flow."""
        names = (each.name for each in fields(self) if each.name not in ("if_exists", "flow"))
        values = {name: getattr(self, name) for name in names}
        return values | {"overrides": list(self.overrides)}

    def run_root(self) -> str:
        """Return the folder of the runs.

        Raises:
            ConfigError: See :func:`check`.
        """
        if self.resume is None:
            return composed(self).run_root
        return compose_config([each for each in self.overrides if each.startswith("run_root=")]).run_root


def parse_arguments(arguments: Sequence[str], flow: str | None = None) -> RunRequest:
    """Parse a command line of ``key=value`` words.

    Args:
        arguments: Words of the command line.
        flow: Training flow; ``None`` means that of the run to resume, or of the chosen algorithm.

    Raises:
        ConfigError: A word or a number is malformed, or a chosen file does not exist.
    """
    named: dict[str, Any] = {}
    overrides = []
    for word in arguments:
        key, value = split_word(word, "iterations=5")
        if key == "if_exists":
            named[key] = if_exists_of(value)
        elif key not in FLOW_KEYS:
            overrides.append(word)
        elif key in ("iterations", "seed"):
            named[key] = whole_number(word)
        else:
            named[key] = value
    return RunRequest(**named, overrides=tuple(overrides), flow=flow or _flow_of(named, overrides))


def _flow_of(named: Mapping[str, Any], overrides: Sequence[str]) -> str:
    """Return the flow of the run to resume or to branch off, else the flow that runs the chosen algorithm."""
    if branches(overrides):
        return str(origin_of(overrides, DEFAULT_RUN_ROOT).config()["flow"])
    if (run_id := named.get("resume")) is not None:
        root = [each for each in overrides if each.startswith("run_root=")]
        return str(RunFolder.open(compose_config(root).run_root, run_id).config()["flow"])
    return chosen_flow([f"{key}={named[key]}" for key in ("experiment", "algorithm") if key in named])


def split_word(word: str, example: str) -> tuple[str, str]:
    """Split a word of a command line into key and value.

    Raises:
        ConfigError: The word does not have the form ``key=value``.
    """
    key, equals, value = word.partition("=")
    if not equals or not key:
        raise ConfigError(f"{word}: must be of the form key=value, such as {example}")
    return key, value


def whole_number(word: str) -> int:
    """Return the number in a word ``key=number``.

    Raises:
        ConfigError: The value is no whole number.
    """
    try:
        return int(word.partition("=")[2])
    except ValueError:
        raise ConfigError(f"{word}: must be a whole number") from None


def if_exists_of(value: str) -> IfExists:
    """Return the value of ``if_exists``.

    Raises:
        ConfigError: It is another word.
    """
    if value not in ("refuse", "resume"):
        raise ConfigError(f"if_exists={value}: must be refuse or resume")
    return cast(IfExists, value)


def check(request: RunRequest, *, starts: bool = False) -> RunConfig:
    """Return the checked configuration of a request, including a ``run_id``, without writing anything.

    Args:
        request: Request for a run.
        starts: Whether the run starts here. Then its folder needs room for the images of a replay buffer, and this
            machine needs the GPUs of the workers, unless they run on the cluster at ``RAY_ADDRESS``.

    Raises:
        ConfigError: One line per mistake.
    """
    first_check = _check_gpus if starts and not os.environ.get("RAY_ADDRESS") else None
    config = _resumed_config(request) if request.resume is not None else _new_config(request, first_check)
    if request.resume is not None and first_check is not None:
        first_check(config)
    if config.flow != request.flow:
        chosen = (each for each in request.overrides if each.startswith("flow="))
        named = (
            f"algorithm={request.algorithm}"
            if request.algorithm is not None
            else next(chosen, f"resume={request.resume}")
        )
        raise ConfigError(
            f"{named}: runs in the flow {config.flow}, not in {request.flow}; start python -m "
            f"flows.{config.flow} or the deployment {config.flow}/{config.experiment}"
        )
    check_compatibility(config)
    if request.resume is None and not branches(request.overrides):
        refuse_unread(request.overrides, config)
    _check_expert(config)
    if starts:
        check_replay_space(config)
    return config


def _check_expert(config: RunConfig) -> None:
    """Refuse a warm start without an expert; an evaluation of the same configuration needs none."""
    if not isinstance(config, EmbodiedConfig) or config.warm_start is None or config.warm_start.dataset is not None:
        return
    for name, part in config.env.parts.items():
        # An environment without an adapter reports a missing expert when it is made.
        if part.adapter is not None and part.adapter.expert is None:
            key = f"env.members.{name}" if name else "env"
            raise ConfigError(
                f"{key}.adapter.expert: must be module:function for the demonstrations of warm_start; allowed without "
                f"it are {'' if name else 'warm_start.dataset=<folder> and '}warm_start=null"
            )


def _check_gpus(config: RunConfig) -> None:
    if config.cluster.gpus_per_worker > 0:
        from embodyflow.workers.gpu_sharing import check_own_gpus  # imports torch and Ray, which takes seconds

        check_own_gpus(config)


def composed(request: RunRequest, first_check: Callable[[RunConfig], None] | None = None) -> RunConfig:
    """Return the checked configuration of a new run: the experiment's, or that of the run to branch off.

    Raises:
        ConfigError: One line per mistake.
    """
    if not branches(request.overrides):
        return compose_config(request.hydra_overrides(), first_check=first_check)
    if request.algorithm is not None or request.experiment != RunRequest.experiment:  # the default may mean none
        key = "experiment" if request.algorithm is None else "algorithm"
        raise ConfigError(f"{key}={getattr(request, key)}: must be left out with branch.run, which brings its own")
    values = {"iterations": request.iterations, "seed": request.seed, "run_id": request.run_id}
    given = {key: value for key, value in values.items() if value is not None}
    config = branched_config(given, request.overrides, DEFAULT_RUN_ROOT)
    if first_check is not None:
        first_check(config)
    return config


def _new_config(request: RunRequest, first_check: Callable[[RunConfig], None] | None) -> RunConfig:
    config = composed(request, first_check)
    if config.run_id is None:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        config = config.model_copy(update={"run_id": f"{config.experiment}-seed{config.seed}-{stamp}"})
    if config.run_dir.exists():
        hint = f"choose another or resume={config.run_id}"
        if not RunFolder(config.run_dir).checkpoints.committed():
            hint = "it has no committed checkpoint to resume from; choose another"
        raise ConfigError(f"run_id={config.run_id}: {config.run_dir} exists; {hint}")
    return config


def open_folder(request: RunRequest, config: RunConfig) -> RunFolder:
    """Return the folder of the run to resume, or a new one that records the id of this flow run.

    A resumed run's record of tasks that are not restored by their seed gets those that a new version of the environment
    has added.
    """
    if request.resume is not None:
        folder = RunFolder(config.run_dir)
        folder.add_unrestorable(config.unrestorable())
        return folder
    from prefect.runtime import flow_run  # takes a second, which a mere check should not wait for

    fill = None if config.branch is None else partial(fill_branch, config)
    return RunFolder.create(config, {FLOW_RUN_FILE: str(flow_run.id)}, fill)


def bind_to_flow_run(request: RunRequest) -> RunRequest:
    """Bind a request to the Prefect flow run that executes it.

    Without a ``run_id`` the run has the flow run's name. If Prefect retries the flow run, the request resumes from
    the last commit of the earlier attempt, or replaces its folder if nothing was committed. A folder that another flow
    run created stays untouched, and :func:`check` refuses it.

    Raises:
        ConfigError: The earlier attempt is still running.
    """
    from prefect.runtime import flow_run

    is_retry = (flow_run.run_count or 1) > 1
    if request.resume is None and request.run_id is None:
        run_id = free_name(str(flow_run.name), str(flow_run.id), request.run_root(), is_retry=is_retry)
        request = replace(request, run_id=run_id)
    if request.resume is None and is_retry:
        config = composed(request)
        folder = RunFolder(config.run_dir)
        if not _created_by_this_flow_run(folder):
            return request
        if folder.checkpoints.committed():
            return RunRequest(
                request.experiment,
                iterations=request.iterations,
                resume=request.run_id,
                overrides=(word_of("run_root", config.run_root),),
                flow=request.flow,
            )
        with folder.locked():
            folder.remove()  # nothing was committed
    return request


def _created_by_this_flow_run(folder: RunFolder) -> bool:
    from prefect.runtime import flow_run

    note = folder.path / FLOW_RUN_FILE
    return note.is_file() and note.read_text() == str(flow_run.id)


def stretched_schedule(folder: RunFolder, config: RunConfig) -> str | None:
    """Return a line that tells a resumed run's user that its learning rates or KL coefficients change, else ``None``.

    Args:
        folder: Folder of the run, with the configuration that it was started with.
        config: Configuration that the run is resumed with.
    """
    before = validate_config(folder.config() | {"run_root": config.run_root})
    first = folder.checkpoints.committed()[-1] + 1
    old, new = (each.trainer.rate_fraction(first, each.iterations) for each in (before, config))
    lengths = [each.trainer.schedule_iterations or each.iterations for each in (before, config)]
    if old != new:
        name, what = f"trainer.schedule.name={config.trainer.schedule.name}", "learning rate"
        values = [config.trainer.learning_rate * share for share in (old, new)]
    else:
        name, what = "algorithm.kl.final_coef", "KL coefficient"
        values = [config.algorithm.kl.annealed_coef(first, each) for each in lengths]
    if values[0] == values[1] or first > config.iterations:
        return None
    changed = "iterations" if config.trainer.schedule_iterations is None else "trainer.schedule_iterations"
    return (
        f"{changed}={lengths[1]} stretches {name} from {lengths[0]} iterations: iteration {first} has the {what} "
        f"{values[1]:.3g}; {SCHEDULE_LENGTH}={lengths[0]} keeps the old schedule, {values[0]:.3g}"
    )


def _resumed_config(request: RunRequest) -> RunConfig:
    """Return the configuration of the run to resume, which lies in ``run_root``."""
    others = [each for each in request.overrides if not each.startswith(("run_root=", f"{SCHEDULE_LENGTH}="))]
    is_renamed = request.run_id not in (None, request.resume)
    if request.seed is not None or request.algorithm is not None or others or is_renamed:
        raise ConfigError(
            f"resume={request.resume}: a resumed run keeps its configuration; "
            f"allowed with resume are iterations, run_root and {SCHEDULE_LENGTH}"
        )
    asked = compose_config([f"experiment={request.experiment}", *request.overrides])
    run_root = asked.run_root
    folder = RunFolder.open(run_root, str(request.resume))
    try:
        # The folder's place and name win over its config.yaml: it may be a copy, or may have been moved.
        config = validate_config(folder.config() | {"run_root": run_root, "run_id": request.resume})
    except ConfigError as error:
        raise ConfigError(f"resume={request.resume}: its config.yaml is not valid in this version: {error}") from error
    done = folder.checkpoints.committed()
    if not done:
        raise ConfigError(f"resume={request.resume}: it has no committed checkpoint; start a run with another run_id")
    if request.experiment not in (config.experiment, RunRequest.experiment):  # the default may mean none was given
        raise ConfigError(
            f"experiment={request.experiment}: resume={request.resume} has experiment={config.experiment}; "
            "leave experiment out"
        )
    iterations = config.iterations if request.iterations is None else request.iterations
    folder.refuse_if_locked()
    if iterations < done[-1]:
        raise ConfigError(f"iterations={iterations}: must be at least {done[-1]}, which the run has completed")
    try:
        if iterations > done[-1]:  # otherwise the run writes no further checkpoint
            folder.checkpoints.require_room(freed=folder.checkpoints.unfinished_bytes(done[-1] + 1))
    except DiskFullError as error:
        raise ConfigError(f"resume={request.resume}: {error}") from error
    trainer = config.trainer
    if any(each.startswith(f"{SCHEDULE_LENGTH}=") for each in request.overrides):
        trainer = trainer.model_copy(update={"schedule_iterations": asked.trainer.schedule_iterations})
    if config.resume_check is not None and iterations > done[-1]:
        try:
            resolve(config.resume_check)(config)
        except ConfigError as error:
            raise ConfigError(f"resume={request.resume}: {error}") from error
    return config.model_copy(update={"iterations": iterations, "trainer": trainer})
