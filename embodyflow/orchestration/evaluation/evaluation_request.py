"""What an evaluation is asked for, checked before anything is started."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from prefect.runtime import flow_run

from embodyflow.config.compose import compose_config, validate_config
from embodyflow.config.embodied import EmbodiedConfig
from embodyflow.errors import ConfigError
from embodyflow.orchestration.evaluation.kept_checkpoint import chosen, keep
from embodyflow.orchestration.request.request import split_word
from embodyflow.record.run_folder import RunFolder
from embodyflow.references import resolve

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class EvaluationRequest:
    """The parameters of the flow ``evaluate``.

    Attributes:
        policy: folder of a run, whose own configuration holds, or of an exported policy.
        experiment: of an exported policy, what it is evaluated in.
        run_id: names the evaluation's folder; by custom it is made of the policy's name, and of the checkpoint's
            iteration or, where no command line has settled that, of the flow run's id.
        overrides: ``key=value``, such as ``evaluation.num_goals=50``.
    """

    policy: str
    experiment: str | None = None
    run_id: str | None = None
    overrides: Sequence[str] = field(default_factory=tuple)

    def parameters(self) -> dict[str, Any]:
        """Return the request as parameters of its flow."""
        values = {"policy": self.policy, "experiment": self.experiment, "run_id": self.run_id}
        return values | {"overrides": list(self.overrides)}


@dataclass(frozen=True)
class EvaluatedPolicy:
    """Where the weights come from.

    Attributes:
        path: of the run or of the export.
        iteration: whose checkpoint of the run it is; ``None`` for an export.
    """

    path: Path
    iteration: int | None


def parse_evaluation(words: Sequence[str]) -> EvaluationRequest:
    """Read a command line of ``key=value`` words.

    Raises:
        ConfigError: a word is not of that form, or there is no policy among them.
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


def of_this_flow_run(request: EvaluationRequest) -> EvaluationRequest:
    """Name an evaluation without a ``run_id`` after the Prefect flow run that executes it.

    A flow run that Prefect retries is to find what it has played, whatever the run has committed meanwhile.
    """
    if request.run_id is not None:
        return request
    return replace(request, run_id=f"evaluate-{Path(request.policy).absolute().name}-{str(flow_run.id)[:8]}")


def check_evaluation(request: EvaluationRequest) -> tuple[EmbodiedConfig, EvaluatedPolicy]:
    """Return the configuration to evaluate with, and what; writes nothing.

    Raises:
        ConfigError: one line per mistake.
    """
    path = Path(request.policy)
    if (path / "config.yaml").is_file():
        config, policy = _of_run(request, RunFolder(path))
    elif (path / WEIGHTS).is_file():
        config = compose_config([f"experiment={request.experiment or 'embodied'}", *request.overrides])
        policy = EvaluatedPolicy(path, None)
    else:
        raise ConfigError(
            f"policy={path}: holds neither config.yaml, as runs do, nor {WEIGHTS}, as exported policies do"
        )
    if not isinstance(config, EmbodiedConfig):
        raise ConfigError(f"policy={path}: is of job={config.job}; allowed is embodied")
    suffix = "" if policy.iteration is None else f"-{policy.iteration:06d}"
    run_id = request.run_id or f"evaluate-{path.absolute().name}{suffix}"
    config = EmbodiedConfig.model_validate(config.model_dump() | {"run_id": run_id})
    _check_folder(config)
    if (begun_with := chosen(config.run_dir)) is not None:
        policy = EvaluatedPolicy(path, begun_with)
    return config, policy


def open_evaluation(config: EmbodiedConfig, policy: EvaluatedPolicy) -> RunFolder:
    """Return the evaluation's folder: a new one, or that of an earlier attempt, to go on where it ended.

    What it plays is settled then, and stays there whatever becomes of the run.

    Raises:
        ConfigError: the run has removed the checkpoint meanwhile, or another process is at work on the evaluation.
    """
    folder = RunFolder(config.run_dir) if config.run_dir.exists() else RunFolder.create(config)
    if policy.iteration is not None:
        with folder.locked():
            keep(folder, RunFolder(policy.path), policy.iteration)
    return folder


def _of_run(request: EvaluationRequest, run: RunFolder) -> tuple[Any, EvaluatedPolicy]:
    values = run.config()
    if request.experiment not in (None, values["experiment"]):
        raise ConfigError(
            f"experiment={request.experiment}: the run {run.path} is of {values['experiment']}; leave it out, or name "
            f"the run's export, policy={run.path}/policy"
        )
    done = run.checkpoints.committed()
    if not done:
        raise ConfigError(f"policy={run.path}: the run has no committed checkpoint")
    try:
        merged = OmegaConf.merge(OmegaConf.create(values), OmegaConf.from_dotlist(list(request.overrides)))
    except OmegaConfBaseException as error:
        raise ConfigError(str(error).partition("\n")[0]) from error
    config = validate_config(OmegaConf.to_container(merged))  # type: ignore[arg-type]
    resolve(config.check)(config)
    return config, EvaluatedPolicy(run.path, done[-1])


def _check_folder(config: EmbodiedConfig) -> None:
    """Refuse a folder that something else is in."""
    folder = config.run_dir
    if not folder.exists():
        return
    written = yaml.safe_load((folder / "config.yaml").read_text()) if (folder / "config.yaml").is_file() else None
    if written != config.model_dump(mode="json"):
        raise ConfigError(f"run_id={config.run_id}: {folder} holds another run or evaluation; choose another run_id")
