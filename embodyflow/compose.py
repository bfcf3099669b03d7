"""From Hydra overrides to a checked :class:`~embodyflow.config.RunConfig`, or one clear line.

Everything a user can get wrong in a configuration ends here, before any process is started.
"""

import difflib
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from embodyflow.config import RunConfig
from embodyflow.errors import ConfigError

CONFIG_DIR = Path(__file__).resolve().parent.parent / "configs"


def experiments() -> list[str]:
    """Return the names of the shipped experiments."""
    return sorted(path.stem for path in (CONFIG_DIR / "experiment").glob("*.yaml"))


def compose_config(overrides: Sequence[str]) -> RunConfig:
    """Compose and check the configuration that Hydra's ``overrides`` describe.

    Args:
        overrides: in Hydra's grammar, for example ``["experiment=embodied", "trainer.epochs=2"]``.

    Raises:
        ConfigError: one line per mistake, each naming the key and what is allowed.
    """
    config = _validate(_compose(overrides))
    _check_environment(config)
    _check_run_root(config)
    _check_trackers(config)
    return config


def _compose(overrides: Sequence[str]) -> dict[str, Any]:
    _check_experiment(overrides)
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
            composed = compose("config", overrides=list(overrides))
        return OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)  # type: ignore[return-value]
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_explain(error, overrides)) from error


def _check_experiment(overrides: Sequence[str]) -> None:
    for override in overrides:
        key, _, value = override.partition("=")
        if key == "experiment" and value not in experiments():
            raise ConfigError(f"experiment={value}: allowed are {', '.join(experiments())}")


def _explain(error: Exception, overrides: Sequence[str]) -> str:
    """Say in one line which override Hydra did not take, and what it would have."""
    first, *rest = [line.strip() for line in str(error).strip().splitlines()]
    if rest and rest[0].startswith("Available options"):
        first = f"no such group; allowed are {', '.join(option for option in rest[1:] if option)}"
        return next((f"{o}: {first}" for o in overrides if o.partition("=")[2] in str(error)), first)
    cause = str(error.__cause__ or "")
    for override in overrides:
        key = override.lstrip("+~").partition("=")[0]
        leaf = key.rsplit(".", 1)[-1]
        if key in first or leaf in cause.partition("\n")[0]:
            near = difflib.get_close_matches(key, _known_keys(), n=3, cutoff=0.5)
            hint = f"; did you mean {' or '.join(near)}?" if near and key not in near else ""
            return f"{override}: {_reason(first)}{hint}"
    return _reason(first)


def _reason(line: str) -> str:
    if line.startswith("Could not override"):
        return "no such key"
    return line.rstrip(".")


def _known_keys(model: Any = RunConfig, prefix: str = "") -> list[str]:
    keys = []
    for name, field in model.model_fields.items():
        keys.append(prefix + name)
        for kind in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if hasattr(kind, "model_fields"):
                keys += _known_keys(kind, f"{prefix}{name}.")
    return keys


def _validate(values: dict[str, Any]) -> RunConfig:
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(_line(mistake) for mistake in error.errors())) from error


def _line(mistake: Any) -> str:
    key = ".".join(str(part) for part in mistake["loc"])
    message = mistake["msg"].removeprefix("Value error, ")
    if mistake["type"] == "value_error":
        return f"{key}: {message}" if key else message
    if mistake["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, _known_keys(), n=3, cutoff=0.5)
        return f"{key}: no such key" + (f"; did you mean {' or '.join(near)}?" if near else "")
    return f"{key}={mistake['input']!r}: {message[0].lower()}{message[1:]}"


def _check_environment(config: RunConfig) -> None:
    module, _, name = config.env.id.rpartition(":")
    if module and importlib.util.find_spec(module) is None:
        raise ConfigError(f"env.id={config.env.id}: there is no module {module!r} to import")
    try:
        if module:
            importlib.import_module(module)
        spec = gymnasium.spec(name)
    except ImportError as error:
        raise ConfigError(f"env.id={config.env.id}: {error}; install what it needs") from error
    except gymnasium.error.Error as error:
        raise ConfigError(f"env.id={config.env.id}: {str(error).splitlines()[0]}") from error
    known = getattr(load_env_creator(spec.entry_point), "tasks", config.env.tasks)  # type: ignore[arg-type]
    for task in config.env.tasks:
        if task not in known:
            near = difflib.get_close_matches(task, known, n=3) or sorted(known)
            raise ConfigError(f"env.tasks: {task!r} is unknown; allowed are, for example, {', '.join(near)}")


def _check_run_root(config: RunConfig) -> None:
    """Refuse a run folder that cannot be written, without making it."""
    folder = Path(config.run_root).absolute()
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"run_root={config.run_root}: {existing} is not a folder that can be written")


def _check_trackers(config: RunConfig) -> None:
    if config.tracking.wandb != "disabled" and importlib.util.find_spec("wandb") is None:
        raise ConfigError(
            f"tracking.wandb={config.tracking.wandb}: wandb is not installed; "
            "pip install 'embodyflow[wandb]' or use tracking.wandb=disabled"
        )
