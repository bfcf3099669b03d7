"""The request for an evaluation, checked before any process starts."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prefect.runtime import flow_run

from embodyflow.config import RunConfig
from embodyflow.config.base import RUN_NAME_PATTERN
from embodyflow.config.composition.compose import compose_config, validate_config
from embodyflow.config.composition.words import changed_by
from embodyflow.config.run import EvaluationConfig
from embodyflow.errors import ConfigError
from embodyflow.orchestration.evaluation.pinned_checkpoint import pin_checkpoint, pinned_iteration
from embodyflow.orchestration.request.request import split_word
from embodyflow.orchestration.request.run_name import free_name
from embodyflow.record.run_folder import RunFolder
from embodyflow.references import resolve

WEIGHTS = "model.safetensors"
OF_TRAINING = (
    *("iterations", "critic", "filter", "classifier", "progress", "health", "trainer.epochs", "trainer.schedule"),
    *("trainer.learning_rate", "trainer.num_minibatches", "trainer.keep_checkpoints", "trainer.max_grad_norm"),
    *("trainer.iterations_per_commit",),
)
"""Sections and keys that an evaluation does not read."""


@dataclass(frozen=True)
class EvaluationRequest:
    """The parameters of the flow ``evaluate``.

    Attributes:
        policy: Folder of a run, which brings its own configuration, or of an exported policy.
        experiment: Experiment to evaluate an exported policy in.
        run_id: Name of the evaluation's folder. The default is the policy's name with the checkpoint's iteration, or
            the flow run's name if the request does not come from a command line.
        overrides: Configuration overrides ``key=value``, such as ``evaluation.num_goals=50``.
    """

    policy: str
    experiment: str | None = None
    run_id: str | None = None
    overrides: Sequence[str] = field(default_factory=tuple)

    def parameters(self) -> dict[str, Any]:
        """Return the request as parameters of the flow."""
        values = {"policy": self.policy, "experiment": self.experiment, "run_id": self.run_id}
        return values | {"overrides": list(self.overrides)}

    def run_root(self) -> str:
        """Return the folder of the evaluation's folder.

        Raises:
            ConfigError: See :func:`check_evaluation`.
        """
        return _found(self)[0].run_root


@dataclass(frozen=True)
class EvaluatedPolicy:
    """The source of the weights.

    Attributes:
        path: Folder of the run or of the export.
        iteration: Iteration of the run's checkpoint; ``None`` for an export.
    """

    path: Path
    iteration: int | None


def parse_evaluation(words: Sequence[str]) -> EvaluationRequest:
    """Parse a command line of ``key=value`` words.

    Raises:
        ConfigError: A word has another form, or ``policy`` is missing.
    """
    named: dict[str, str] = {}
    overrides = []
    for word in words:
        key, value = split_word(word, "policy=runs/mine")
        if key in ("policy", "experiment", "run_id"):
            named[key] = value
        else:
            overrides.append(word)
    if "policy" not in named:
        raise ConfigError(
            "policy: must be set to the folder of a run, such as policy=runs/mine, or of an exported policy"
        )
    return EvaluationRequest(**named, overrides=tuple(overrides))


def bind_to_flow_run(request: EvaluationRequest) -> EvaluationRequest:
    """Give an evaluation without ``run_id`` the name of its Prefect flow run.

    So a retried flow run finds the episodes it has played, even if the evaluated run has committed since.
    """
    if request.run_id is not None:
        return request
    is_retry = (flow_run.run_count or 1) > 1
    run_id = free_name(str(flow_run.name), str(flow_run.id), request.run_root(), is_retry=is_retry)
    return replace(request, run_id=run_id)


def check_evaluation(request: EvaluationRequest) -> tuple[RunConfig, EvaluatedPolicy]:
    """Return the configuration and the policy of an evaluation. Writes nothing.

    Raises:
        ConfigError: One line per mistake.
    """
    keys = {word: word.lstrip("+~").partition("=")[0] for word in request.overrides}
    for word, key in keys.items():
        if any(f"{key}.".startswith(f"{unread}.") for unread in OF_TRAINING):
            raise ConfigError(f"{word}: has no effect on an evaluation, which trains nothing; leave it out")
        if key == "rollout.num_groups" and "rollout.num_workers" not in keys.values():
            raise ConfigError(
                f"{word}: has no effect on an evaluation, which plays evaluation.num_goals; it only bounds "
                "rollout.num_workers, so set both or neither"
            )
    config, policy = _found(request)
    path = Path(request.policy)
    suffix = "" if policy.iteration is None else f"-{policy.iteration:06d}"
    run_id = f"evaluate-{path.absolute().name}{suffix}" if request.run_id is None else request.run_id
    if re.fullmatch(RUN_NAME_PATTERN, run_id) is None:
        raise ConfigError(f"run_id={run_id!r}: must be the name of a folder, {RUN_NAME_PATTERN}; set run_id=<name>")
    # A run that was not evaluated in training has evaluation=null.
    values = config.model_dump()
    plain = {"beside": False, "own_worker": False, "rows_per_part": EvaluationConfig().rows_per_part}
    evaluation = (values["evaluation"] or {}) | plain  # nothing is trained beside it
    config = type(config).model_validate(values | {"run_id": run_id, "evaluation": evaluation})
    _check_folder(config)
    if (pinned := pinned_iteration(config.run_dir)) is not None:
        policy = EvaluatedPolicy(path, pinned)
    return config, policy


def _found(request: EvaluationRequest) -> tuple[RunConfig, EvaluatedPolicy]:
    """Return the configuration of an evaluation, without its name, and the policy."""
    path = Path(request.policy)
    if (path / "config.yaml").is_file():
        config, policy = _check_run(request, RunFolder(path))
    elif (path / WEIGHTS).is_file():
        config = compose_config([f"experiment={request.experiment or 'embodied'}", *request.overrides])
        policy = EvaluatedPolicy(path, None)
    else:
        raise ConfigError(
            f"policy={path}: must be the folder of a run, with config.yaml, or of an exported policy, with {WEIGHTS}"
        )
    if config.policy_evaluator is None:
        raise ConfigError(f"policy={path}: belongs to job={config.job}; allowed are embodied and control")
    return config, policy


def open_evaluation(config: RunConfig, policy: EvaluatedPolicy) -> RunFolder:
    """Create the evaluation's folder, or open that of an earlier attempt to continue it.

    The checkpoint is pinned in the folder, so the evaluation plays the same weights even if the run removes it.

    Raises:
        ConfigError: The run has removed the checkpoint meanwhile, or another process works on the evaluation.
    """
    folder = RunFolder(config.run_dir) if config.run_dir.exists() else RunFolder.create(config)
    if policy.iteration is not None:
        with folder.locked():
            pin_checkpoint(folder, RunFolder(policy.path), policy.iteration)
    return folder


def _check_run(request: EvaluationRequest, run: RunFolder) -> tuple[RunConfig, EvaluatedPolicy]:
    values = run.config()
    if request.experiment not in (None, values["experiment"]):
        raise ConfigError(
            f"experiment={request.experiment}: the run {run.path} has experiment={values['experiment']}; leave it out, "
            f"or name the run's export, policy={run.path}/policy"
        )
    done = run.checkpoints.committed()
    if not done:
        raise ConfigError(f"policy={run.path}: the run has no committed checkpoint")
    config = validate_config(changed_by(values, request.overrides))
    resolve(config.check)(config)
    return config, EvaluatedPolicy(run.path, done[-1])


def _check_folder(config: RunConfig) -> None:
    """Refuse a folder that holds something else."""
    folder = config.run_dir
    if not folder.exists():
        return
    written = RunFolder(folder).config() if (folder / "config.yaml").is_file() else None
    if written != config.model_dump(mode="json"):
        raise ConfigError(f"run_id={config.run_id}: {folder} holds another run or evaluation; choose another run_id")
