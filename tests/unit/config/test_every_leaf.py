"""Wrong values in every key of composed configurations: a line each, and no number that a run cannot use."""

import importlib.util
import math
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from embodyflow.config.composition.compose import compose_config, validate_config
from embodyflow.errors import ConfigError

WORDS = {
    "embodied": (),
    "calculator": (),
    "half_cheetah": ("algorithm=sac",),
    "fetch_reach": (),
    "cart_pole": (),
    "mixed": ("policy.state_dim=36", "policy.action_dim=4", "policy.member_action_dims=[4,4,2]"),
    "push": ("algorithm=rlpd", "policy.state_dim=30", "policy.action_dim=4"),
}
"""An experiment of each kind, with the sizes that its environments have."""

NEVER_NUMBERS = (math.nan, math.inf, -math.inf, True, 10**30, 1e300, 1e-300)
OTHERS = (-1, -0.5, 0, "", "a\nb", "nonsense", "a\0b", [], [None], {}, {"x": 1}, None)
FREE = ("kwargs", "reset_options", "scratch", "settings", "changes")
"""Sections that a user fills for others, such as the arguments of an environment."""


def leaves(values: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the keys of all sections and leaves, as paths, with their values."""
    if path:
        yield path, values
    if isinstance(values, Mapping):
        for name, value in values.items():
            yield from leaves(value, (*path, name))


def changed(values: Any, path: tuple[str, ...], value: Any) -> Any:
    """Return a copy of nested values with another one at a path."""
    first, *rest = path
    return values | {first: changed(values[first], tuple(rest), value) if rest else value}


NEEDS_LIBERO = pytest.mark.skipif(importlib.util.find_spec("robosuite") is None, reason="needs the extra libero")
EXPERIMENTS = [pytest.param(each, marks=[NEEDS_LIBERO] if each == "mixed" else []) for each in WORDS]


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_a_wrong_value_in_any_key_is_named_in_printable_lines(experiment: str) -> None:
    values = compose_config([f"experiment={experiment}", *WORDS[experiment]]).model_dump(by_alias=True)
    validate_config(values)
    refused = 0
    for path, old in leaves(values):
        is_number = isinstance(old, int | float) and not isinstance(old, bool) and not set(path) & {*FREE}
        for value in (*NEVER_NUMBERS, *OTHERS):
            wrong = f"{'.'.join(path)}={value!r}"
            try:
                validate_config(changed(values, path, value))
            except ConfigError as error:
                assert all(line.isprintable() for line in str(error).splitlines()), wrong
                assert len(str(error).splitlines()) == 1 or isinstance(value, dict | list), f"{wrong}: {error}"
                refused += 1
            else:
                is_allowed = isinstance(old, float) and value == 10**30  # a number like another for float32
                assert is_allowed or not (is_number and any(value is each for each in NEVER_NUMBERS)), wrong
    assert refused > 500
