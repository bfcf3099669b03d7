"""One line for each mistake in a configuration: the key, what is wrong and what is allowed."""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from embodyflow.config import RunConfig
from embodyflow.config.composition.keys import keys_of, known_keys
from embodyflow.config.jobs import JOBS
from embodyflow.config.robots.environment import MemberConfig
from embodyflow.policies.policy_registry import unknown_policy_file
from embodyflow.policies.policy_section import config_class_of

OPEN_SECTIONS = (
    "env.kwargs.",
    "env.members.",
    "env.reset_options.",
    "env.adapter.images.",
    "env.adapter.instructions.",
    "env.adapter.task_kwargs.",
    "reward.function.kwargs.",
    "rollout.agent.workflow_kwargs.",
    "health.own.",
    "warm_start.dataset.columns.",
    "warm_start.dataset.tasks.",
)
"""Sections in which users choose the keys."""


MUST_BE_SET = {
    "off_policy.demonstrations": " to the folder replay of a finished run: off_policy.demonstrations=runs/<run>/replay",
    "policy.path": " to the folder of a pretrained model, or to its name on the Hugging Face hub: policy.path=<folder>",
}
"""What to set a key to that an experiment leaves open, after the words ``must be set``."""


def explain_hydra_error(error: Exception, overrides: Sequence[str], options: Callable[[str], Sequence[str]]) -> str:
    """Return one line that names the override that Hydra refused and what is allowed.

    Args:
        error: Error of Hydra or OmegaConf.
        overrides: Overrides that Hydra composed.
        options: Function from a group to the names of its files.
    """
    return in_one_line(_explain_hydra_error(error, overrides, options))


def in_one_line(text: str) -> str:
    """Return a text, which may hold a user's value, with line ends and other control characters as escapes."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def _explain_hydra_error(error: Exception, overrides: Sequence[str], options: Callable[[str], Sequence[str]]) -> str:
    first = str(error).strip().partition("\n")[0].rstrip(".")
    if isinstance(error, OverrideParseException):
        written = str(error.override).lstrip("+")
        return f"{written}: is not in Hydra's grammar; allowed is key=value, with special characters in quotes"
    if isinstance(error, MissingConfigException):
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        if group.startswith("policy"):
            return unknown_policy_file(str(error.missing_cfg_file).removeprefix("policy/"), options("policy"))
        while "/" in group and not options(group):  # a file in a folder of the group
            group, _, folder = group.rpartition("/")
            name = f"{folder}/{name}"
        allowed = options(group)
        return f"{group}={name}: allowed are {', '.join(allowed)} (configs/{group}){_nearest(name, allowed)}"
    if isinstance(error, OmegaConfBaseException):
        if isinstance(error, MissingMandatoryValue):
            key = str(error.full_key)
            return f"{key}: must be set{MUST_BE_SET.get(key, f', such as {key}=…')}"
        return f"{error.full_key}: {first}"
    for override in overrides:
        key, _, value = override.lstrip("+~").partition("=")
        if f"'{key}'" in first:
            return f"{override}: " + (f"no such key{_hint(key)}" if first.startswith("Could not override") else first)
        if first.startswith(("Ambiguous value", "Sweep parameters")) and f"{key}={value}" in first:
            return explain_several(override)
        allowed = options(key)
        if "group override" in first and allowed and value not in allowed:  # the value of a group must be a name
            return f"{override}: allowed are {', '.join(allowed)}"
    return first


def explain_several(word: str) -> str:
    """Return one line for a word that has several values, as the words of a sweep do."""
    key, _, value = word.lstrip("+~").partition("=")
    meant = "" if re.match(r"\w+\(", value) else f"; write a list as {key}=[{value}]"
    return f"{word}: has several values; allowed is one{meant}"


def explain_invalid(mistake: Any, values: dict[str, Any]) -> str:
    """Return one line that names the key of a pydantic error and what is allowed.

    Args:
        mistake: Error as in ``ValidationError.errors()``.
        values: Plain values that were validated.
    """
    return in_one_line(_explain_invalid(mistake, values))


def explain_all(mistakes: Sequence[Any], values: dict[str, Any]) -> str:
    """Return a line for each key with mistakes; a value that fits no type of a union has one for each type."""
    lines: dict[str, str] = {}
    for mistake in mistakes:
        lines.setdefault(_key(mistake["loc"], values) or mistake["msg"], explain_invalid(mistake, values))
    return "\n".join(lines.values())


def _explain_invalid(mistake: Any, values: dict[str, Any]) -> str:
    key = _key(mistake["loc"], values)
    message = mistake["msg"].removeprefix("Value error, ")
    if mistake["type"] == "value_error":
        return _joined(key, message) if key else message
    if mistake["type"] == "extra_forbidden":
        return f"{key}: {_unknown_key(key, values)}"
    if mistake["type"] == "config_error":
        return str(message)
    if mistake["type"] == "union_tag_invalid":
        return f"{key}.name={mistake['ctx']['tag']}: allowed are {mistake['ctx']['expected_tags']}"
    if mistake["type"] == "string_type" and isinstance(mistake["input"], int | float):
        return f"{key}={mistake['input']}: must be a string; put quotes around one that reads as a number"
    if mistake["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return f"{key}={mistake['input']}: is a section; allowed are its keys, such as {_key_within(key, values)}=…"
    if mistake["type"] == "union_tag_not_found":
        return f"{key}.name: must be set; allowed are {_kinds_of(key, values)}"
    if mistake["type"] == "tuple_type":
        return f"{key}={mistake['input']!r}: must be a list, such as {key}=[{mistake['input']}]"
    if mistake["type"] == "missing":
        return f"{key}: must be set"
    return f"{key}={mistake['input']!r}: {message[0].lower()}{message[1:]}"


def _joined(section: str, message: str) -> str:
    """Return the message of a section's own check; one that begins with a key of the section names it in full."""
    within = re.match(r"[\w.]+(?==|:? )", message)
    is_key = within is not None and f"{section}.{within[0].partition('.')[0]}" in known_keys()
    return f"{section}.{message}" if is_key else f"{section}: {message}"


def _key_within(section: str, values: Mapping[str, Any]) -> str:
    """Return a key of a section, preferably the one that chooses its kind."""
    kind = JOBS.get(str(values.get("job")), RunConfig)
    found = [name for name, _ in keys_of(kind) if name.startswith(f"{section}.")]
    return next((name for name in found if name == f"{section}.name"), next(iter(found), f"{section}.<key>"))


def _kinds_of(section: str, values: Mapping[str, Any]) -> str:
    """Return the names by which a section's kind is chosen, as a list."""
    keys = keys_of(JOBS.get(str(values.get("job")), RunConfig), "", "")
    chosen = {choice: None for name, choice in keys if name.startswith(f"{section}.")}
    return ", ".join(choice.removeprefix(f"{section}.name=") for choice in chosen)


def _nearest(name: str, options: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, options, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _hint(key: str, known: Sequence[str] = ()) -> str:
    if not known and key.startswith(OPEN_SECTIONS):
        return f"; write +{key}=… to add it"
    if near := difflib.get_close_matches(key, known or known_keys(), n=3, cutoff=0.5):
        return f"; did you mean {' or '.join(near)}?"
    return f"; allowed are {', '.join(known or RunConfig.model_fields)}"


def _unknown_key(key: str, values: dict[str, Any]) -> str:
    """Return where a misplaced key is allowed, or the keys closest to it."""
    if key.startswith("policy.") and ":" in str(values["policy"].get("name")):
        own = [name for name, _ in keys_of(config_class_of(values["policy"]), "policy.")]
        return f"no such key{_hint(key, own)}"
    if key.startswith("env.members."):
        member = ".".join(key.split(".")[:3])
        return f"no such key{_hint(key, [name for name, _ in keys_of(MemberConfig, f'{member}.')])}"
    choices = {name: [choice for known, choice in keys_of(kind) if known == key] for name, kind in JOBS.items()}
    if here := choices.get(values.get("job", "")):
        return f"allowed with {' or '.join(dict.fromkeys(here))}"
    if jobs := [name for name, found in choices.items() if found]:
        listed = " and ".join([", ".join(jobs[:-1]), jobs[-1]] if jobs[1:] else jobs)
        return f"only {listed} jobs have it"
    return f"no such key{_hint(key)}"


def _is_type(part: str) -> bool:
    """Return True if a part of a place is pydantic's name of a type, which it inserts for each one of a union."""
    return (
        part in ("str", "int", "float", "bool", "none") or not re.fullmatch(r"[\w.-]+", part) or "constrained-" in part
    )


def _key(loc: Sequence[str | int], values: Any) -> str:
    """Return the key of a mistake, without the union tags that pydantic inserts (policy, reward and others)."""
    parts = []
    for part in loc:
        is_mapping = isinstance(values, dict)
        if is_mapping and part not in values and part == values.get("name"):
            continue
        if isinstance(part, str) and not (is_mapping and part in values) and _is_type(part):
            continue
        parts.append(str(part))
        values = values.get(part) if is_mapping else None
    return ".".join(parts)
