"""``if_exists=resume``: a command line that starts a run and, given again, continues it.

Schedulers give a command again: Slurm after it requeues a job, SkyPilot after it recovers one, a pod that replaces
another. Such a command cannot know whether its run has begun.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from embodyflow.config.composition.compose import validate_config
from embodyflow.config.composition.words import word_of
from embodyflow.errors import ConfigError
from embodyflow.orchestration.request.request import SCHEDULE_LENGTH, RunRequest, composed
from embodyflow.record.run_folder import RunFolder

_MAY_CHANGE = ("iterations", SCHEDULE_LENGTH)
"""Keys that a resumed run may set to another value."""


def continued(request: RunRequest) -> RunRequest:
    """Return a request for what is left of its run, if it has ``if_exists="resume"`` and the run exists.

    A run that has committed is resumed. The folder of one that has not is removed, and the run starts again.

    Raises:
        ConfigError: The request has no ``run_id``, another process is at work on the run, or the run has another
            configuration than the request.
    """
    if request.if_exists == "refuse":
        return request
    if request.resume is not None:
        raise ConfigError(f"if_exists=resume: must be left out with resume={request.resume}")
    if request.run_id is None:
        raise ConfigError("if_exists=resume: needs run_id=<name>, by which a later command finds the run")
    config = composed(request)
    folder = RunFolder(config.run_dir)
    if not (folder.path / "config.yaml").is_file():
        return request
    if not folder.checkpoints.committed():
        with folder.locked():
            folder.remove()
        return request
    kept = validate_config(folder.config() | {"run_root": config.run_root, "run_id": config.run_id})
    changed = list(_differences(kept.model_dump(mode="json"), config.model_dump(mode="json")))
    if changed:
        raise ConfigError(
            f"{'; '.join(changed)}; a resumed run keeps its configuration, so give those values, or choose another "
            f"run_id than {request.run_id}"
        )
    length = [] if config.trainer.schedule_iterations is None else [config.trainer.schedule_iterations]
    return RunRequest(
        request.experiment,
        iterations=config.iterations,
        resume=request.run_id,
        overrides=(word_of("run_root", config.run_root), *(f"{SCHEDULE_LENGTH}={each}" for each in length)),
        flow=request.flow,
    )


def _differences(kept: Mapping[str, Any], asked: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield a clause for each key of a configuration whose value in a run's folder is not that of the request."""
    for name in dict.fromkeys([*kept, *asked]):
        before, now, key = kept.get(name), asked.get(name), f"{prefix}{name}"
        if before == now or key in _MAY_CHANGE:
            continue
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            yield from _differences(before, now, f"{key}.")
        else:
            yield f"{key}={now}: the run has {before}"
