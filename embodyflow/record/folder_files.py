"""Files of a run's folder that may be damaged, edited or half-written: what is wrong with them is one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from embodyflow.config.composition.upgrade import upgrade
from embodyflow.errors import ConfigError

NEEDED = ("experiment", "flow", "iterations", "job")
"""Keys that every run's ``config.yaml`` has."""


def read_config(path: Path) -> dict[str, Any]:
    """Return the values of a run's ``config.yaml``, brought up to date.

    Raises:
        ConfigError: The file cannot be read, or is not the configuration of a run.
    """
    values = _read(path, yaml.safe_load)
    if missing := [key for key in NEEDED if values.get(key) is None]:
        raise ConfigError(f"{path}: is not the configuration of a run: it has no {missing[0]}")
    updated: dict[str, Any] = upgrade(values)
    return updated


def read_json(path: Path, *needed: str) -> dict[str, Any] | None:
    """Return the object in a JSON file; ``None`` if there is no such file.

    Args:
        path: The file.
        needed: Keys that the object must have.

    Raises:
        ConfigError: The file cannot be read, holds something else, or lacks a key.
    """
    if not path.exists():
        return None
    values = _read(path, json.loads)
    if missing := [key for key in needed if key not in values]:
        raise ConfigError(f"{path}: is damaged: it has no {missing[0]}")
    return values


def _read(path: Path, parse: Callable[[str], Any]) -> dict[str, Any]:
    try:
        if path.is_fifo():  # would be read without end
            raise OSError("it is a pipe")
        values = parse(path.read_text())
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: is damaged: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: is damaged: it holds no keys")
    return values
