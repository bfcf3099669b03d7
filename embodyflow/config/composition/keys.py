"""The keys of all configuration models."""

import functools
from collections.abc import Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from embodyflow.config.jobs import JOBS
from embodyflow.policies.policy_config import PolicyConfig
from embodyflow.policies.policy_registry import shipped_configs


@functools.cache
def known_keys() -> dict[str, None]:
    """Return the keys of all kinds of jobs as an ordered set; a section comes before its keys."""
    return dict.fromkeys(key for kind in JOBS.values() for key, _ in keys_of(kind))


def keys_of(model: Any, prefix: str = "", choice: str = "") -> list[tuple[str, str]]:
    """Return each key of a model with the choice that it requires.

    Args:
        model: Configuration model.
        prefix: Key of the section that the model describes, with a dot at its end; empty for the whole configuration.
        choice: Choice that the section requires, such as ``policy.name=pi0``; empty if it always exists.
    """
    if "name" in model.model_fields:
        choice = f"{prefix}name={model.model_fields['name'].default}"
    keys = []
    for name, field in model.model_fields.items():
        keys.append((prefix + name, choice))
        for kind in _types_of(field.annotation):
            if hasattr(kind, "model_fields"):
                keys += keys_of(kind, f"{prefix}{name}.", choice)
    return keys


def _types_of(annotation: Any) -> Sequence[Any]:
    """Return the types that a field's value may have; for a policy, those of the shipped ones."""
    if isinstance(annotation, type) and issubclass(annotation, PolicyConfig):
        return shipped_configs(annotation)
    if get_origin(annotation) is Annotated:
        return _types_of(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [kind for each in get_args(annotation) for kind in _types_of(each)]
    return (annotation,)
