"""From Hydra overrides to a checked :class:`~embodyflow.config.RunConfig`, or one clear line.

Everything a user can get wrong in a configuration ends here, before any process is started.
"""

import contextlib
import difflib
import functools
import importlib.util
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from embodyflow.config import RunConfig
from embodyflow.config.environment import EnvConfig
from embodyflow.config.jobs import JOBS
from embodyflow.errors import ConfigError
from embodyflow.project import shipped
from embodyflow.references import resolve

ENVIRONMENT_CHECK = "embodyflow.simulation.make_env:check_environment"  # imports Gymnasium
LOGIN_CHECK = "embodyflow.record.trackers:check_login"  # imports wandb
_USERS_OWN = (
    "env.kwargs.",
    "env.adapter.images.",
    "env.adapter.instructions.",
    "env.adapter.task_kwargs.",
    "reward.function.kwargs.",
)
"""Sections whose keys are the user's own."""
_OPEN = ("data.chat_template_kwargs.", "reward.function.functions")
"""Beginnings of keys that may be set although neither YAML nor models name them."""
CONFIG_DIR = shipped() / "configs"


def experiments() -> list[str]:
    """Return the names of the shipped experiments."""
    return _options("experiment")


def algorithms(flow: str | None = None) -> list[str]:
    """Return the names of the shipped algorithms; with ``flow`` only those that this flow runs."""
    flows = {name: _flow_of(name) for name in _options("algorithm")}
    return [name for name, runs_in in flows.items() if flow in (None, runs_in)]


def default_algorithm(experiment: str, flow: str) -> str:
    """Return the algorithm that a flow runs an experiment by: the experiment's default if it is one of the flow's.

    Raises:
        ConfigError: There is no such experiment or flow.
    """
    flows = sorted({_flow_of(name) for name in _options("algorithm")})
    if flow not in flows:
        raise ConfigError(f"flow={flow}: allowed are {', '.join(flows)}")
    name = str(_choose([f"experiment={experiment}"]).algorithm_name)
    return name if _flow_of(name) == flow else flow


def chosen_flow(overrides: Sequence[str]) -> str:
    """Return the flow that runs what ``overrides`` choose.

    Raises:
        ConfigError: A file that they choose does not exist.
    """
    return str(_choose([each for each in overrides if each.partition("=")[0] in ("experiment", "algorithm")]).flow)


@functools.cache
def _flow_of(algorithm: str) -> str:
    return str(OmegaConf.load(CONFIG_DIR / "algorithm" / f"{algorithm}.yaml").flow)


def _choose(choices: Sequence[str]) -> DictConfig:
    """Compose the files that ``choices`` name, without recipes and checks."""
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
            return compose("config", overrides=list(choices))
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_explain(error, choices)) from error


def compose_config(overrides: Sequence[str]) -> RunConfig:
    """Compose and check the configuration that Hydra's ``overrides`` describe.

    Args:
        overrides: in Hydra's grammar, for example ``["experiment=embodied", "trainer.epochs=2"]``.

    Raises:
        ConfigError: one line per mistake, each naming the key and what is allowed.
    """
    config = validate_config(_with_sizes(_compose(overrides)))
    resolve(config.check)(config)
    _check_run_root(config)
    _check_trackers(config)
    return config


def validate_config(values: dict[str, Any]) -> RunConfig:
    """Check plain values by themselves, leaving out what depends on this machine.

    Raises:
        ConfigError: one line per mistake, each naming the key and what is allowed.
    """
    kind = JOBS.get(values.get("job", ""))
    if kind is None:
        raise ConfigError(f"job={values.get('job')}: allowed are {', '.join(JOBS)}")
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(_line(mistake, values) for mistake in error.errors())) from error


def validate_environment(values: dict[str, Any]) -> EnvConfig:
    """Check the plain values of an environment, and that it can be made and stepped here.

    Raises:
        ConfigError: one line per mistake, each naming the key and what is allowed.
    """
    try:
        env = EnvConfig.model_validate(values)
    except ValidationError as error:
        mistakes = [_line({**m, "loc": ("env", *m["loc"])}, {"env": values}) for m in error.errors()]
        raise ConfigError("\n".join(mistakes)) from error
    resolve(ENVIRONMENT_CHECK)(env)
    return env


def _compose(overrides: Sequence[str]) -> dict[str, Any]:
    GlobalHydra.instance().clear()
    try:
        kinds = [override for override in overrides if _names_its_kind(override)]
        words = [_set_or_add(each) for each in overrides if each not in kinds]
        with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
            composed = compose("config", overrides=words)
            # The recipe depends on the choices above: it goes over the experiment's values and under the command line.
            composed = compose("config", overrides=[*_recipe(composed), *words])
        with open_dict(composed):
            del composed["recipes"]
            for override in OverridesParser.create().parse_overrides(kinds):
                OmegaConf.update(composed, override.key_or_group, override.value(), merge=False)
        return OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)  # type: ignore[return-value]
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(_explain(error, overrides)) from error


def _recipe(composed: DictConfig) -> list[str]:
    """Return what the algorithm sets in this kind of job, as overrides.

    Raises:
        ConfigError: The algorithm does not run in this kind of job.
    """
    name, job, recipes = composed.algorithm_name, composed.job, OmegaConf.to_container(composed.recipes)
    assert isinstance(recipes, dict)
    recipe = recipes.get(name, "has no recipe for this kind of job in configs/job")
    if isinstance(recipe, Mapping):
        return list(_as_overrides(recipe))
    if composed.pipeline.custom_fn or composed.pipeline.yaml:  # a graph of the user's own says what fits
        return []
    allowed = ", ".join(str(key) for key, value in recipes.items() if isinstance(value, Mapping))
    raise ConfigError(f"algorithm={name}: {recipe}; allowed with job={job} are {allowed}")


def _as_overrides(values: Mapping[Any, Any], prefix: str = "") -> Iterator[str]:
    """Yield nested values as Hydra overrides of their leaves."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _as_overrides(value, f"{prefix}{key}.")
        else:
            yield f"++{prefix}{key}={json.dumps(value)}"


def _names_its_kind(override: str) -> bool:
    """Say whether it is a section as ``{name:…}``: that is another kind's whole section, of which nothing is kept."""
    key, _, value = override.partition("=")
    return value.startswith("{") and "name:" in value and f"{key}.name" in _known_keys()


def _set_or_add(override: str) -> str:
    """Let a key that the models know be set as it is, also where the YAML leaves it at its default."""
    key = override.partition("=")[0]
    is_known = key in _known_keys() or key.startswith(_OPEN)
    return f"++{override}" if is_known and not _options(key) else override


def _explain(error: Exception, overrides: Sequence[str]) -> str:
    """Say in one line which override Hydra did not take, and what it would have."""
    first = str(error).strip().partition("\n")[0].rstrip(".")
    if isinstance(error, OverrideParseException):
        return f"{error.override}: is not in Hydra's grammar; allowed is key=value, special characters in quotes"
    if isinstance(error, MissingConfigException):
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        options = _options(group)
        return f"{group}={name}: allowed are {', '.join(options)} (configs/{group}){_nearest(name, options)}"
    if isinstance(error, OmegaConfBaseException):
        return f"{error.full_key}: {first}"
    for override in overrides:
        key, _, value = override.lstrip("+~").partition("=")
        if f"'{key}'" in first:
            return f"{override}: " + (f"no such key{_hint(key)}" if first.startswith("Could not override") else first)
        if first.startswith("Ambiguous value") and f"{key}={value}" in first:
            return f"{override}: is several values; allowed is one, a list is {key}=[{value}]"
        options = _options(key)
        if "group override" in first and options and value not in options:  # a group given anything but a name
            return f"{override}: allowed are {', '.join(options)}"
    return first


def _options(group: str) -> list[str]:
    """Return the names of a group's files."""
    return sorted(path.stem for path in (CONFIG_DIR / group).glob("*.yaml"))


def _nearest(name: str, options: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, options, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _hint(key: str) -> str:
    if key.startswith(_USERS_OWN):
        return f"; write +{key}=… to add it"
    near = difflib.get_close_matches(key, _known_keys(), n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(near)}?" if near else f"; allowed are {', '.join(RunConfig.model_fields)}"


@functools.cache
def _known_keys() -> dict[str, None]:
    """Return the keys of all kinds of jobs, sections before what is in them."""
    return dict.fromkeys(key for kind in JOBS.values() for key, _ in _keys_of(kind))


def _keys_of(model: Any, prefix: str = "", choice: str = "") -> list[tuple[str, str]]:
    """Return each key with the choice that it comes with, such as ``policy.name=pi0``; empty where it always is."""
    if "name" in model.model_fields:
        choice = f"{prefix}name={model.model_fields['name'].default}"
    keys = []
    for name, field in model.model_fields.items():
        keys.append((prefix + name, choice))
        for kind in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if hasattr(kind, "model_fields"):
                keys += _keys_of(kind, f"{prefix}{name}.", choice)
    return keys


def _forbidden(key: str, job: str | None) -> str:
    """Say of a key that does not belong here where it does, or what is like it."""
    choices = {name: [choice for known, choice in _keys_of(kind) if known == key] for name, kind in JOBS.items()}
    if here := choices.get(job or ""):
        return f"allowed with {' or '.join(dict.fromkeys(here))}"
    if jobs := [name for name, found in choices.items() if found]:
        return f"only {' and '.join(jobs)} jobs have it"
    return f"no such key{_hint(key)}"


def _line(mistake: Any, values: dict[str, Any]) -> str:
    key = _key(mistake["loc"], values)
    message = mistake["msg"].removeprefix("Value error, ")
    if mistake["type"] == "value_error":
        return f"{key}: {message}" if key else message
    if mistake["type"] == "extra_forbidden":
        return f"{key}: {_forbidden(key, values.get('job'))}"
    if mistake["type"] == "union_tag_invalid":
        return f"{key}.name={mistake['ctx']['tag']}: allowed are {mistake['ctx']['expected_tags']}"
    if mistake["type"] == "string_type" and isinstance(mistake["input"], int | float):
        return f"{key}={mistake['input']}: is no text; allowed is text, which has quotes where it reads as a number"
    if mistake["type"] in ("model_type", "model_attributes_type"):
        return f"{key}={mistake['input']}: is a section; allowed are its keys, such as {key}.name=…"
    if mistake["type"] == "tuple_type":
        return f"{key}={mistake['input']!r}: must be a list, such as {key}=[{mistake['input']}]"
    if mistake["type"] == "missing":
        return f"{key}: must be set"
    return f"{key}={mistake['input']!r}: {message[0].lower()}{message[1:]}"


def _key(loc: Sequence[str | int], values: Any) -> str:
    """Return a mistake's key without the kinds of policy, reward and so on that pydantic names in between."""
    parts = []
    for part in loc:
        is_mapping = isinstance(values, dict)
        if is_mapping and part not in values and part == values.get("name"):
            continue
        parts.append(str(part))
        values = values.get(part) if is_mapping else None
    return ".".join(parts)


def _with_sizes(values: dict[str, Any]) -> dict[str, Any]:
    """Fill in the sizes of the policy that are null: those of the environment."""
    policy = values.get("policy")
    null = [key for key in ("state_dim", "action_dim") if isinstance(policy, dict) and policy.get(key, 0) is None]
    if not isinstance(policy, dict) or not null:
        return values
    sizes = dict.fromkeys(null, 1)
    with contextlib.suppress(ValidationError):  # told with all other mistakes when the whole is validated
        sizes |= resolve(ENVIRONMENT_CHECK)(EnvConfig.model_validate(values.get("env")))
    return {**values, "policy": {**policy, **{key: sizes[key] for key in null}}}


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
    if config.tracking.wandb == "online":
        resolve(LOGIN_CHECK)()
