"""The section ``policy`` while it is still plain values, or a word of the command line."""

import re
from collections.abc import Mapping
from typing import Any

from embodyflow.errors import ConfigError
from embodyflow.policies.policy_config import ControlPolicyConfig, PolicyConfig
from embodyflow.policies.policy_registry import find_policy

SIZES = ("state_dim", "action_dim", "num_actions")
"""Keys of sizes that the environment can fill in."""
MEMBER_SIZES = "member_action_dims"
"""Key of the action dimensions by member of ``env.members``."""
OWN_POLICY = re.compile(r"\+?policy(?:\.name)?=(?P<name>[\w.]+:[\w.]+)")


def as_section(override: str) -> str:
    """Return ``policy=module:Class`` as an override of the whole section; others are returned as they are.

    Hydra takes the value of ``policy`` for a file in ``configs/policy``. Nothing is kept of the section that an
    experiment has: its keys are another policy's.
    """
    found = OWN_POLICY.fullmatch(override)
    return override if found is None else f"policy={{name:'{found['name']}'}}"


def open_sizes(section: Mapping[str, Any]) -> list[str]:
    """Return the sizes to take from the environment: those that are null, or not set and without a default."""
    config_class = config_class_of(section)
    fields = {} if config_class is None else config_class.model_fields
    needed = [key for key in SIZES if key in fields and fields[key].is_required() and key not in section]
    return [key for key in SIZES if key in needed or section.get(key, 0) is None]


def for_discrete_actions(section: Mapping[str, Any], sizes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the section of the policy for an environment with discrete actions.

    A section that leaves the actions to the environment (``action_dim`` is null) gets the environment's ``num_choices``
    if its class has this key and the section does not set it. A policy for control becomes its class's
    ``discrete_policy`` if the action space is ``Discrete``, as far as their keys agree. A key that has no meaning there
    stays if it was changed, so that validation refuses it. Other sections are returned as they are.

    Args:
        section: Plain values of ``policy``.
        sizes: Sizes of a policy for the environment (:func:`~embodyflow.policies.env_match.policy_sizes`).
    """
    config_class = config_class_of(section)
    if config_class is None or "action_dim" not in open_sizes(section) or "num_choices" not in sizes:
        return section
    if "num_choices" in config_class.model_fields and section.get("num_choices") is None:
        return {**section, "num_choices": sizes["num_choices"]}
    if not issubclass(config_class, ControlPolicyConfig) or "num_actions" not in sizes:
        return section
    name = config_class.discrete_policy
    if name is None:
        return section
    known, defaults = find_policy(name).config_class.model_fields, config_class.model_fields
    kept = {key: value for key, value in section.items() if key in known or value != defaults[key].default}
    return {**{key: value for key, value in kept.items() if key != "action_dim"}, "name": name}


def for_members(section: Mapping[str, Any], sizes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the section of the policy with the action dimensions of ``env.members``, if it leaves actions to them.

    Args:
        section: Plain values of ``policy``.
        sizes: Sizes of a policy for the environments (:func:`~embodyflow.simulation.make_env.check_environment`).
    """
    config_class = config_class_of(section)
    if config_class is None or "action_dim" not in open_sizes(section) or MEMBER_SIZES not in sizes:
        return section
    if MEMBER_SIZES not in config_class.model_fields or section.get(MEMBER_SIZES) is not None:
        return section
    return {**section, MEMBER_SIZES: sizes[MEMBER_SIZES]}


def config_class_of(section: Mapping[str, Any]) -> type[PolicyConfig] | None:
    """Return the configuration class that the section's name chooses; ``None`` where the name is refused later."""
    try:
        return find_policy(str(section.get("name"))).config_class
    except ConfigError:
        return None
