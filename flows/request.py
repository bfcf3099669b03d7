"""What a run is asked for, checked before anything is started."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

from pydantic import Field, ValidationError

from embodyflow.compose import compose_config, experiments
from embodyflow.config import RunConfig
from embodyflow.errors import ConfigError
from embodyflow.run_folder import RunFolder

# Prefect shows these types as a form and refuses what does not fit when a run is submitted.
Experiment = Annotated[str, Field(json_schema_extra={"enum": experiments()}, description="configs/experiment")]
Iterations = Annotated[int | None, Field(ge=1, description="RL iterations; the experiment's own number by default")]
Seed = Annotated[int | None, Field(ge=0, lt=2**31, description="of every random draw")]
RunId = Annotated[str | None, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$", description="names the run's folder")]
Resume = Annotated[str | None, Field(description="run_id of a run to continue from its last commit")]
Overrides = Annotated[list[str], Field(description="Hydra overrides, such as trainer.epochs=2")]

FLOW_KEYS = ("experiment", "iterations", "seed", "run_id", "resume")


@dataclass(frozen=True)
class RunRequest:
    """The parameters of a training flow.

    Attributes:
        experiment: name of a file in ``configs/experiment``.
        iterations, seed, run_id: override the configuration's keys of these names.
        resume: id of a run to continue; its own configuration holds.
        overrides: further ones, in Hydra's grammar.
    """

    experiment: str = "embodied"
    iterations: int | None = None
    seed: int | None = None
    run_id: str | None = None
    resume: str | None = None
    overrides: Sequence[str] = field(default_factory=tuple)

    def hydra_overrides(self) -> list[str]:
        """Return the request as one list of Hydra overrides."""
        named = {"iterations": self.iterations, "seed": self.seed, "run_id": self.run_id}
        return [
            f"experiment={self.experiment}",
            *self.overrides,
            *(f"{key}={value}" for key, value in named.items() if value is not None),
        ]


def parse_arguments(arguments: Sequence[str]) -> RunRequest:
    """Read a command line of ``key=value`` words.

    Raises:
        ConfigError: a word is not of that form, or a number is none.
    """
    request = RunRequest()
    for word in arguments:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise ConfigError(f"{word}: must be of the form key=value, such as iterations=5")
        if key in ("iterations", "seed"):
            try:
                request = replace(request, **{key: int(value)})
            except ValueError:
                raise ConfigError(f"{word}: must be a whole number") from None
        elif key in FLOW_KEYS:
            request = replace(request, **{key: value})
        else:
            request = replace(request, overrides=(*request.overrides, word))
    return request


def check(request: RunRequest) -> RunConfig:
    """Return the configuration the request describes, with its ``run_id`` chosen; writes nothing.

    Raises:
        ConfigError: one line per mistake.
    """
    if request.resume is not None:
        return _resumed_config(request)
    config = compose_config(request.hydra_overrides())
    if config.run_id is None:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        config = config.model_copy(update={"run_id": f"{config.experiment}-seed{config.seed}-{stamp}"})
    if config.run_dir.exists():
        raise ConfigError(f"run_id={config.run_id}: {config.run_dir} exists; choose another or resume={config.run_id}")
    return config


def open_folder(request: RunRequest, config: RunConfig) -> RunFolder:
    """Return the run's folder: a new one, or the one to resume."""
    if request.resume is not None:
        return RunFolder(config.run_dir)
    return RunFolder.create(config)


def _resumed_config(request: RunRequest) -> RunConfig:
    if request.seed is not None or request.overrides or request.run_id not in (None, request.resume):
        raise ConfigError(
            f"resume={request.resume}: a resumed run keeps its configuration; allowed beside it is iterations"
        )
    run_root = compose_config([f"experiment={request.experiment}"]).run_root
    folder = RunFolder.open(run_root, str(request.resume))
    try:
        config = RunConfig.model_validate(folder.config())
    except ValidationError as error:
        raise ConfigError(f"resume={request.resume}: {folder.path}/config.yaml does not fit: {error}") from error
    if not folder.committed():
        raise ConfigError(f"resume={request.resume}: the run has no committed checkpoint; start it anew")
    if request.iterations is not None:
        if request.iterations < folder.committed()[-1]:
            raise ConfigError(
                f"iterations={request.iterations}: the run has done {folder.committed()[-1]}; allowed are more"
            )
        config = config.model_copy(update={"iterations": request.iterations})
    return config
