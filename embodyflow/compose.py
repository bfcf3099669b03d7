"""From Hydra overrides to a checked :class:`~embodyflow.config.RunConfig`, or one clear line.

Everything a user can get wrong in a configuration ends here, before any process is started.
"""

import contextlib
import difflib
import importlib.util
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from embodyflow.config import EnvConfig, RunConfig
from embodyflow.engines.environments import make_env
from embodyflow.errors import ConfigError
from embodyflow.policies.fit import check_fits, policy_sizes

EXAMPLE_ENV_ID = "envs:embodyflow/MetaWorld-v0"
CONFIG_DIR = Path(__file__).resolve().parent.parent / "configs"


def experiments() -> list[str]:
    """Return the names of the shipped experiments."""
    return _options("experiment")


def compose_config(overrides: Sequence[str]) -> RunConfig:
    """Compose and check the configuration that Hydra's ``overrides`` describe.

    Args:
        overrides: in Hydra's grammar, for example ``["experiment=embodied", "trainer.epochs=2"]``.

    Raises:
        ConfigError: one line per mistake, each naming the key and what is allowed.
    """
    config = validate_config(_with_sizes(_compose(overrides)))
    _check_environment(config)
    _check_run_root(config)
    _check_trackers(config)
    return config


def validate_config(values: dict[str, Any]) -> RunConfig:
    """Check plain values by themselves, leaving out what depends on this machine.

    Raises:
        ConfigError: one line per mistake, each naming the key and what is allowed.
    """
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(_line(mistake) for mistake in error.errors())) from error


def validate_environment(values: dict[str, Any]) -> EnvConfig:
    """Check the plain values of an environment, and that it can be made and stepped here.

    Raises:
        ConfigError: one line per mistake, each naming the key and what is allowed.
    """
    try:
        env = EnvConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(_line({**m, "loc": ("env", *m["loc"])}) for m in error.errors())) from error
    _check_tasks(env)
    _try_a_step(env, _made(env))
    return env


def own_tasks(env_id: str) -> list[str]:
    """Return the tasks that an environment names itself, none if it is not made for policies that follow instructions.

    Raises:
        ConfigError: there is no such environment.
    """
    entry_point = _env_spec(env_id).entry_point
    return list(getattr(entry_point if callable(entry_point) else _creator(env_id, entry_point), "tasks", ()))


def _compose(overrides: Sequence[str]) -> dict[str, Any]:
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
            composed = compose("config", overrides=[_set_or_add(override) for override in overrides])
        return OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)  # type: ignore[return-value]
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(_explain(error, overrides)) from error


def _set_or_add(override: str) -> str:
    """Let a key that the models know be set as it is, also where the YAML leaves it at its default."""
    key = override.partition("=")[0]
    return f"++{override}" if key in _known_keys() and not _options(key) else override


def _explain(error: Exception, overrides: Sequence[str]) -> str:
    """Say in one line which override Hydra did not take, and what it would have."""
    first = str(error).strip().partition("\n")[0].rstrip(".")
    if isinstance(error, OverrideParseException):
        return f"{error.override}: is not in Hydra's grammar; allowed is key=value, special characters in quotes"
    if isinstance(error, MissingConfigException):
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        return f"{group}={name}: allowed are {', '.join(_options(group))}"
    if isinstance(error, OmegaConfBaseException):
        return f"{error.full_key}: {first}"
    for override in overrides:
        key, _, value = override.lstrip("+~").partition("=")
        if f"'{key}'" in first:
            return f"{override}: " + (f"no such key{_hint(key)}" if first.startswith("Could not override") else first)
        options = _options(key)
        if "group override" in first and options and value not in options:  # a group given anything but a name
            return f"{override}: allowed are {', '.join(options)}"
    return first


def _options(group: str) -> list[str]:
    """Return the names of a group's files."""
    return sorted(path.stem for path in (CONFIG_DIR / group).glob("*.yaml"))


def _hint(key: str) -> str:
    if key.startswith(("env.kwargs.", "env.adapter.images.", "env.adapter.instructions.", "env.adapter.task_kwargs.")):
        return f"; write +{key}=… to add it"
    near = difflib.get_close_matches(key, _known_keys(), n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(near)}?" if near else f"; allowed are {', '.join(RunConfig.model_fields)}"


def _known_keys(model: Any = RunConfig, prefix: str = "") -> list[str]:
    keys = []
    for name, field in model.model_fields.items():
        keys.append(prefix + name)
        for kind in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if hasattr(kind, "model_fields"):
                keys += _known_keys(kind, f"{prefix}{name}.")
    return keys


def _line(mistake: Any) -> str:
    loc = mistake["loc"]
    if loc[:1] == ("policy",) and len(loc) > 2:  # pydantic names the kind of policy in between
        loc = (loc[0], *loc[2:])
    key = ".".join(str(part) for part in loc)
    message = mistake["msg"].removeprefix("Value error, ")
    if mistake["type"] == "value_error":
        return f"{key}: {message}" if key else message
    if mistake["type"] == "extra_forbidden":
        return f"{key}: no such key{_hint(key)}"
    if mistake["type"] == "union_tag_invalid":
        return f"{key}.name={mistake['ctx']['tag']}: allowed are {mistake['ctx']['expected_tags']}"
    if mistake["type"] == "missing":
        return f"{key}: must be set"
    return f"{key}={mistake['input']!r}: {message[0].lower()}{message[1:]}"


def _check_environment(config: RunConfig) -> None:
    """Refuse an environment that cannot be made here, or that policy, warm start and evaluation do not fit."""
    env = config.env
    _check_tasks(env)
    made = _made(env)
    check_fits(config.policy, made)
    if env.adapter is not None:
        _try_a_step(env, made)
    if not env.tasks:
        return
    num_goals = made.get_wrapper_attr("num_goals")
    made.close()
    wanted = {}
    if config.evaluation is not None:
        wanted["evaluation.num_goals", "eval"] = config.evaluation.num_goals
    if config.warm_start is not None:
        wanted["warm_start.num_demos", "demo"] = config.warm_start.num_demos
    for (key, split), number in wanted.items():
        if number > num_goals[split]:
            raise ConfigError(f"{key}={number}: allowed are 1 to {num_goals[split]}, the goals of split {split!r}")


def _check_tasks(env: EnvConfig) -> None:
    """Refuse an unknown environment, and tasks that it does not have; an adapter takes any."""
    known = own_tasks(env.id)
    if not env.tasks or env.adapter is not None:
        return
    if not known:
        raise ConfigError(
            f"env.id={env.id}: is not made for policies that follow instructions: it names no tasks; "
            "say what success is by env.adapter.success_info, success_reward or success_termination"
        )
    for task in env.tasks:
        if task not in known:
            near = difflib.get_close_matches(task, known, n=3) or sorted(known)
            raise ConfigError(f"env.tasks: {task!r} is unknown; allowed are, for example, {', '.join(near[:5])}")


def _creator(env_id: str, entry_point: Any) -> Any:
    try:
        return load_env_creator(entry_point)
    except ImportError as error:
        raise ConfigError(f"env.id={env_id}: {error}; install what it needs") from error


def _made(env: EnvConfig) -> gymnasium.Env[Any, Any]:
    try:
        return make_env(env, env.first_task, "train")
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        raise ConfigError(f"{_culprit(env, error)}{error}; install what it needs") from error
    except (TypeError, ValueError, OSError) as error:
        raise ConfigError(f"{_culprit(env, error)}{str(error).partition(' was raised')[0]}") from error


def _culprit(env: EnvConfig, error: Exception) -> str:
    """Return the key at fault, as the beginning of a message."""
    named = re.match(r"(\w+)[=.]", str(error))
    if env.adapter is not None and named is not None and named[1] in type(env.adapter).model_fields:
        return "env.adapter."
    about_itself = isinstance(error, ImportError) or str(error).startswith("its ")
    return f"env.id={env.id}: " if about_itself else f"env.kwargs={env.kwargs}: "


def _try_a_step(env: EnvConfig, made: gymnasium.Env[Any, Any]) -> None:
    """Refuse a definition of success that the first step contradicts."""
    try:
        made.reset(seed=0)
        made.step(made.action_space.sample())
    except ValueError as error:
        raise ConfigError(f"{_culprit(env, error)}{error}") from error


def _with_sizes(values: dict[str, Any]) -> dict[str, Any]:
    """Fill in the sizes of the policy that are null: those of the environment."""
    policy = values.get("policy")
    null = [key for key in ("state_dim", "action_dim") if isinstance(policy, dict) and policy.get(key, 0) is None]
    if not isinstance(policy, dict) or not null:
        return values
    sizes = dict.fromkeys(null, 1)
    with contextlib.suppress(ValidationError):  # told with all other mistakes when the whole is validated
        env = EnvConfig.model_validate(values.get("env"))
        _check_tasks(env)
        sizes |= policy_sizes(_made(env))
    return {**values, "policy": {**policy, **{key: sizes[key] for key in null}}}


def _env_spec(env_id: str) -> EnvSpec:
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        return gymnasium.spec(name)
    except ImportError as error:
        raise ConfigError(f"env.id={env_id}: {error}; install what it needs or correct the module's name") from error
    except gymnasium.error.Error as error:
        raise ConfigError(
            f"env.id={env_id}: {str(error).splitlines()[0].rstrip('.')}; "
            f"allowed are an id that Gymnasium knows and module:id, such as {EXAMPLE_ENV_ID} or "
            "gymnasium_robotics:FetchReach-v4"
        ) from error


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
