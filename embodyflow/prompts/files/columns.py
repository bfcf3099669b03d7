"""Columns of a row by name; dots reach into nested columns: ``reward_model.ground_truth``."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from embodyflow.errors import ConfigError


def top_column(name: str, available: Iterable[str]) -> str | None:
    """Return the column of a file that holds a named value, or ``None``.

    A column whose own name has dots comes before a nested one.
    """
    known = set(available)
    parts = name.split(".")
    heads = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((head for head in heads if head in known), None)


def check_columns(where: str, wanted: Sequence[str], available: Sequence[str]) -> list[str]:
    """Return the columns of a file that hold the wanted values, without repetition.

    Raises:
        ConfigError: A column is missing; the message begins with ``where``.
    """
    found = {name: top_column(name, available) for name in wanted}
    missing = [name for name, column in found.items() if column is None]
    if missing:
        raise ConfigError(f"{where}: has no column {', '.join(missing)}; it has {', '.join(available)}")
    return list(dict.fromkeys(column for column in found.values() if column is not None))


def value_of(row: Mapping[str, Any], name: str, where: str) -> Any:
    """Return the value of a column.

    Raises:
        ConfigError: A nested column lacks the field; the message begins with ``where``.
    """
    column = top_column(name, row)
    if column is None:
        raise ConfigError(f"{where}: has no column {name}; it has {', '.join(row)}")
    value = row[column]
    for field in name[len(column) + 1 :].split(".") if column != name else ():
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where}: column {column} is {abbreviate(value)}, which has no field {field}")
        if field not in value:
            raise ConfigError(f"{where}: column {column} has no field {field}; it has {', '.join(map(str, value))}")
        column, value = f"{column}.{field}", value[field]
    return value


def is_missing(value: Any) -> bool:
    """Return True for nothing, and for NaN, which pandas writes in its place into columns of numbers."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def abbreviate(value: Any) -> str:
    """Return a value as Python writes it, in at most 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
