"""Compose Hydra overrides into a checked :class:`~embodyflow.config.RunConfig`.

All mistakes in a configuration are found here, before any process starts, and reported in one line each.
"""

import contextlib
import functools
import importlib.util
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from embodyflow.config import RunConfig
from embodyflow.config.composition.config_source import ReadOnce
from embodyflow.config.composition.keys import known_keys
from embodyflow.config.composition.mistakes import explain_all, explain_hydra_error
from embodyflow.config.composition.number_checks import unusable
from embodyflow.config.composition.search_path import ProjectConfigs
from embodyflow.config.jobs import JOBS
from embodyflow.config.robots.environment import EnvConfig
from embodyflow.errors import ConfigError
from embodyflow.policies.policy_section import as_section, for_discrete_actions, for_members, open_sizes
from embodyflow.project import config_folders, shipped
from embodyflow.references import resolve

ENVIRONMENT_CHECK = "embodyflow.simulation.make_env:check_environment"  # imports Gymnasium
LOGIN_CHECK = "embodyflow.record.trackers:check_login"  # imports wandb
EXPORTER_CHECK = "embodyflow.record.otlp.sender:check_installed"  # imports OpenTelemetry
CONFIG_DIR = shipped() / "configs"
Plugins.instance().register(ReadOnce)
Plugins.instance().register(ProjectConfigs)
_OPEN = ("env.reset_options.", "data.chat_template_kwargs.", "reward.function.functions", "health.own.")
"""Prefixes of keys that may be set although neither YAML nor models name them."""
_KEYS_OF_RECIPES = ("algorithm_name", "job", "pipeline", "recipes")
"""Keys and sections on which the choice of a recipe depends."""


def experiments() -> list[str]:
    """Return the names of the experiments: the project's own and the shipped ones."""
    return group_files("experiment")


def algorithms(flow: str | None = None) -> list[str]:
    """Return the names of the shipped algorithms, or only those that ``flow`` runs."""
    flows = {name: _flow_of(name) for name in group_files("algorithm")}
    return [name for name, runs_in in flows.items() if flow in (None, runs_in)]


def default_algorithm(experiment: str, flow: str) -> str:
    """Return the algorithm that a flow uses for an experiment by default.

    It is the experiment's own default if this flow runs it, else the algorithm with the flow's name.

    Raises:
        ConfigError: The experiment or the flow does not exist.
    """
    flows = sorted({_flow_of(name) for name in group_files("algorithm")})
    if flow not in flows:
        raise ConfigError(f"flow={flow}: allowed are {', '.join(flows)}")
    name = str(_choose([f"experiment={experiment}"]).algorithm_name)
    return name if _flow_of(name) == flow else flow


def chosen_flow(overrides: Sequence[str]) -> str:
    """Return the flow that runs the experiment and algorithm in ``overrides``.

    Raises:
        ConfigError: A chosen file does not exist.
    """
    return str(_choose([each for each in overrides if each.partition("=")[0] in ("experiment", "algorithm")]).flow)


@functools.cache
def _flow_of(algorithm: str) -> str:
    paths = [folder / "algorithm" / f"{algorithm}.yaml" for folder in config_folders()]
    return str(OmegaConf.load(next(path for path in paths if path.is_file())).flow)


def _choose(choices: Sequence[str]) -> DictConfig:
    """Compose the files that ``choices`` name, without applying recipes or checks."""
    GlobalHydra.instance().clear()
    try:
        for choice in choices:
            _check_choice(choice)
        with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
            return compose("config", overrides=list(choices))
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(explain_hydra_error(error, choices, group_files)) from error


def compose_config(overrides: Sequence[str], *, first_check: Callable[[RunConfig], None] | None = None) -> RunConfig:
    """Compose Hydra overrides into a configuration and check it, including what it needs of this machine.

    Args:
        overrides: Overrides in Hydra's grammar, such as ``["experiment=embodied", "trainer.epochs=2"]``.
        first_check: Check of the configuration before those that take seconds, such as that of a simulator.

    Raises:
        ConfigError: One line per mistake that names the key and what is allowed.
    """
    config = validate_config(_with_sizes(_compose(overrides)))
    if first_check is not None:
        first_check(config)
    check_on_this_machine(config)
    return config


def check_on_this_machine(config: RunConfig) -> None:
    """Check what a configuration needs of this machine.

    Raises:
        ConfigError: One line that names the key and what is allowed.
    """
    resolve(config.check)(config)
    _check_run_root(config)
    _check_buffer_folders(config)
    _check_trackers(config)


def validate_config(values: dict[str, Any]) -> RunConfig:
    """Validate plain values, without the checks that depend on this machine.

    Raises:
        ConfigError: One line per mistake that names the key and what is allowed.
    """
    job = values.get("job", "")
    kind = JOBS.get(job) if isinstance(job, str) else None
    if kind is None:
        raise ConfigError(f"job={job!r}: allowed are {', '.join(JOBS)}")
    try:
        config = kind.model_validate(values)
    except ValidationError as error:
        raise ConfigError(explain_all(error.errors(), values)) from error
    if mistakes := list(unusable(values, config)):
        raise ConfigError("\n".join(mistakes))
    return config


def validate_recorded(values: dict[str, Any], run: str) -> RunConfig:
    """Validate the configuration in a run's folder, which another version may have written.

    Args:
        values: Content of its ``config.yaml``.
        run: Name or folder of the run, for the error.

    Raises:
        ConfigError: See :func:`validate_config`; the message begins with the run.
    """
    try:
        return validate_config(values)
    except ConfigError as error:
        raise ConfigError(f"{run}: its config.yaml is not valid in this version: {error}") from error


def compose_environment(overrides: Sequence[str]) -> dict[str, Any]:
    """Compose Hydra overrides into the plain values of ``env``, without validating them.

    Raises:
        ConfigError: An override is wrong, or the experiment has no environment.
    """
    values = _compose(overrides)
    if not isinstance(env := values.get("env"), dict):
        raise ConfigError(f"experiment={values['experiment']}: job={values['job']} has no env; allowed are other jobs")
    return env


def validate_environment(values: dict[str, Any]) -> EnvConfig:
    """Validate the plain values of an environment, and check that this machine can make and step it.

    Raises:
        ConfigError: One line per mistake that names the key and what is allowed.
    """
    try:
        env = EnvConfig.model_validate(values)
    except ValidationError as error:
        mistakes = [{**mistake, "loc": ("env", *mistake["loc"])} for mistake in error.errors()]
        raise ConfigError(explain_all(mistakes, {"env": values})) from error
    if found := list(unusable(values, env, "env.")):
        raise ConfigError("\n".join(found))
    resolve(ENVIRONMENT_CHECK)(env)
    return env


def _compose(overrides: Sequence[str]) -> dict[str, Any]:
    GlobalHydra.instance().clear()
    try:
        overrides = [as_section(override) for override in overrides]
        for override in overrides:
            _check_choice(override)
        kinds = [override for override in overrides if _names_its_kind(override)]
        kinds += [override for override in overrides if _is_within(override, kinds)]
        words = [_set_or_add(each) for each in overrides if each not in kinds]
        with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
            recipe = _recipe(tuple(filter(_chooses_recipe, words)), _state_of_files())
            composed = compose("config", overrides=[*recipe, *words])
        with open_dict(composed):
            del composed["recipes"]
            for override in OverridesParser.create().parse_overrides(kinds):
                OmegaConf.update(composed, override.key_or_group, override.value(), merge=False)
        return OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)  # type: ignore[return-value]
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(explain_hydra_error(error, overrides, group_files)) from error


def _check_choice(override: str) -> None:
    """Check that an override of a configuration group may be the name of one file of the group.

    Hydra would take lists of files, and files outside the group's folder. Its own settings, such as ``hydra.run.dir``,
    have no effect here.

    Raises:
        ConfigError: It is a list, a path that leads out of the folder, or a setting of Hydra.
    """
    key, _, value = override.lstrip("+~").partition("=")
    if re.fullmatch(r"hydra([./@].*)?", key):
        raise ConfigError(f"{override}: has no effect; settings of Hydra itself are not read, leave it out")
    files = group_files(key)
    if files and (value.startswith("[") or ".." in value.split("/")):
        raise ConfigError(f"{override}: allowed are {', '.join(files)}")


@functools.lru_cache
def _recipe(choices: tuple[str, ...], files: frozenset[tuple[str, int]]) -> tuple[str, ...]:
    """Return the overrides that the algorithm's recipe makes in this kind of job.

    They override the experiment and yield to the command line. Composing takes a quarter of a second, so processes that
    check many configurations, such as a sweep's, keep the recipes of unchanged files.

    Args:
        choices: Overrides on which the recipe depends.
        files: State of the files from which Hydra composes.

    Raises:
        ConfigError: The algorithm does not support this kind of job.
    """
    composed = compose("config", overrides=list(choices))
    name, job, recipes = composed.algorithm_name, composed.job, OmegaConf.to_container(composed.recipes)
    assert isinstance(recipes, dict)
    recipe = recipes.get(name, "has no recipe for this kind of job in configs/job")
    if isinstance(recipe, Mapping):
        return tuple(_as_overrides(recipe))
    if composed.pipeline.custom_fn or composed.pipeline.yaml:  # a custom graph is checked for compatibility instead
        return ()
    allowed = ", ".join(str(key) for key, value in recipes.items() if isinstance(value, Mapping))
    raise ConfigError(f"algorithm={name}: {recipe}; allowed with job={job} are {allowed}")


def _chooses_recipe(override: str) -> bool:
    """Return True if an override chooses a group's file or sets a key on which the recipe depends."""
    key = override.lstrip("+~").partition("=")[0].partition("@")[0]
    return key.partition(".")[0] in _KEYS_OF_RECIPES or bool(group_files(key))


def _state_of_files() -> frozenset[tuple[str, int]]:
    """Return the paths of the files from which Hydra composes, with the times of their last changes."""
    paths = [path for folder in config_folders() for path in folder.rglob("*.yaml")]
    return frozenset((str(path), path.stat().st_mtime_ns) for path in paths)


def _as_overrides(values: Mapping[Any, Any], prefix: str = "") -> Iterator[str]:
    """Yield nested values as Hydra overrides of their leaves; a name of a group's file chooses the file."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _as_overrides(value, f"{prefix}{key}.")
        elif not prefix and value in group_files(key):
            yield f"{key}={value}"
        else:
            yield f"++{prefix}{key}={json.dumps(value)}"


def _names_its_kind(override: str) -> bool:
    """Return True if an override sets a section to ``{name: …}``, which replaces the whole section."""
    key, _, value = override.lstrip("+").partition("=")
    if not value.startswith("{") or f"{key}.name" not in known_keys():
        return False
    section = OverridesParser.create().parse_override(override).value()
    return isinstance(section, dict) and "name" in section


def _is_within(override: str, kinds: Sequence[str]) -> bool:
    """Return True if the override sets a key of a section that another override replaces as a whole."""
    sections = tuple(f"{kind.lstrip('+').partition('=')[0]}." for kind in kinds)
    return override.lstrip("+").startswith(sections)


def _set_or_add(override: str) -> str:
    """Add ``++`` to an override of a known key, so that Hydra also sets keys that the YAML files omit."""
    key = override.partition("=")[0]
    is_known = key in known_keys() or key.startswith(_OPEN)
    return f"++{override}" if is_known and not group_files(key) else override


def group_files(group: str) -> list[str]:
    """Return the names of a configuration group's files, the project's own and the shipped ones; empty for no group."""
    return sorted({path.stem for folder in config_folders() for path in (folder / group).glob("*.yaml")})


def _with_sizes(values: dict[str, Any]) -> dict[str, Any]:
    """Replace sizes of the policy that are null by those of the environment, whose actions may choose the policy."""
    policy = values.get("policy")
    if not isinstance(policy, dict) or not open_sizes(policy):
        return values
    sizes: dict[str, int | list[int]] = {}
    with contextlib.suppress(ValidationError):  # validation of the whole configuration reports it
        sizes = resolve(ENVIRONMENT_CHECK)(EnvConfig.model_validate(values.get("env")))
    section = for_members(for_discrete_actions(policy, sizes), sizes)
    return {**values, "policy": {**section, **{key: sizes.get(key, 1) for key in open_sizes(section)}}}


def _check_run_root(config: RunConfig) -> None:
    """Refuse a run folder that cannot be written, without creating it."""
    folder = Path(config.run_root).absolute()
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"run_root={config.run_root}: {existing} is not a writable folder")


def _check_buffer_folders(config: RunConfig) -> None:
    """Refuse folders in which a buffer on this machine cannot create unnamed files."""
    if os.environ.get("RAY_ADDRESS"):  # a cluster that runs already, whose machines may have other folders
        return
    buffer = config.cluster.buffer
    for key, folder in (("folder", buffer.folder), ("spill_folder", buffer.spill_folder)):
        try:
            os.close(os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise ConfigError(
                f"cluster.buffer.{key}={folder}: {error.strerror}; allowed are folders on tmpfs, ext4, xfs or btrfs"
            ) from error


def _check_trackers(config: RunConfig) -> None:
    if config.tracking.wandb != "disabled" and importlib.util.find_spec("wandb") is None:
        raise ConfigError(
            f"tracking.wandb={config.tracking.wandb}: wandb is not installed; "
            "pip install 'embodyflow[wandb]' or use tracking.wandb=disabled"
        )
    if config.tracking.wandb == "online":
        resolve(LOGIN_CHECK)()
    if config.tracking.otlp is not None:
        resolve(EXPORTER_CHECK)(f"tracking.otlp.endpoint={config.tracking.otlp.endpoint}")
