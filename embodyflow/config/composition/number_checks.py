"""Values that pydantic accepts and a run cannot use: booleans for numbers, and numbers without a place in float32."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

NO_NUMBER = "must be a number, not true or false"
LARGEST_INTEGER = 2**63 - 1
SMALLEST, LARGEST = 1.17549435e-38, 3.4028234e38
"""Sizes of the numbers that float32 holds without losing digits, besides 0."""


def unusable(values: Mapping[str, Any], config: BaseModel, section: str = "") -> Iterator[str]:
    """Yield a line for each value that a run cannot use, with its key and what is allowed.

    Args:
        values: Plain values of a section.
        config: Section that they were validated to.
        section: Key of the section with a dot, empty at the top.
    """
    for name, field in type(config).model_fields.items():
        given = name if field.alias is None or field.alias not in values else field.alias
        if given in values:
            yield from _unusable(values[given], getattr(config, name), f"{section}{given}")


def _unusable(given: Any, taken: Any, key: str) -> Iterator[str]:
    if isinstance(taken, BaseModel) and isinstance(given, Mapping):
        yield from unusable(given, taken, f"{key}.")
    elif isinstance(taken, Mapping) and isinstance(given, Mapping):
        for name, part in taken.items():
            if isinstance(part, BaseModel | Mapping) and name in given:
                yield from _unusable(given[name], part, f"{key}.{name}")
            elif isinstance(given.get(name), bool) and isinstance(part, int | float) and not isinstance(part, bool):
                yield f"{key}.{name}={given[name]!r}: {NO_NUMBER}"
    elif isinstance(taken, (tuple, list)) and isinstance(given, Sequence) and len(taken) == len(given):
        for index, part in enumerate(taken):
            yield from _unusable(given[index], part, f"{key}.{index}")
    elif (reason := _reason(given, taken)) is not None:
        yield f"{key}={given!r}: {reason}"


def _reason(given: Any, taken: Any) -> str | None:
    if isinstance(taken, str):
        return "must have no NUL character" if "\0" in taken else None
    if isinstance(taken, bool) or not isinstance(taken, (int, float)):
        return None
    if isinstance(given, bool):
        return NO_NUMBER
    if isinstance(taken, int):
        return f"must be at most {LARGEST_INTEGER}" if abs(taken) > LARGEST_INTEGER else None
    if taken != 0 and math.isfinite(taken) and not SMALLEST <= abs(taken) <= LARGEST:
        return f"float32 cannot hold it; allowed are 0 and sizes from {SMALLEST:.2g} to {LARGEST:.2g}"
    return None
