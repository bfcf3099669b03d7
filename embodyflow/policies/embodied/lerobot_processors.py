"""LeRobot's files beside a policy's weights: its processing before and after the model, with statistics."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from safetensors.torch import load_file
from torch import Tensor

from embodyflow.errors import ConfigError
from embodyflow.policies.pretrained.checkpoints import read_json
from embodyflow.policies.pretrained.weight_files import why_unreadable

CONFIG, WEIGHTS = "config.json", "model.safetensors"
PREPROCESSING, POSTPROCESSING = "policy_preprocessor.json", "policy_postprocessor.json"
STATE, ACTION, IMAGES = "observation.state", "action", "observation.images."

Step = dict[str, Any]
"""A step of LeRobot's processing before or after a model."""


def step(name: str, **config: Any) -> Step:
    """Return a step of LeRobot's processing, by its name in LeRobot's registry."""
    return {"registry_name": name, "config": config}


def read_statistics(
    key: str, folder: Path, sizes: Mapping[str, int], kinds: Sequence[str], known: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Return the statistics of the step that normalises, float32 ``[size]``, by names such as ``action.mean``.

    Args:
        key: Key and value that name the checkpoint.
        folder: Folder of the checkpoint.
        sizes: Numbers of each feature that is normalised, by LeRobot's names.
        kinds: LeRobot's names of the statistics of a feature, such as ``mean`` and ``std``.
        known: Statistics to take in place of the folder's.

    Raises:
        ConfigError: The steps or their file are damaged, or a statistic is missing, has another size or is not finite;
            one line with the key.
    """
    found, statistics = {**_stored_statistics(key, folder), **(known or {})}, dict[str, Tensor]()
    for feature, size in sizes.items():
        for name in (f"{feature}.{kind}" for kind in kinds):
            if name not in found:
                raise ConfigError(
                    f"{key}: its {PREPROCESSING} has no {name}; set policy.normalization=demonstrations, or have "
                    "LeRobot migrate it (lerobot.processor.migrate_policy_normalization)"
                )
            values = found[name].float().flatten()
            if len(values) != size:
                raise ConfigError(f"{key}: its {name} has {len(values)} numbers; allowed are {size}")
            if not values.isfinite().all():
                raise ConfigError(f"{key}: its {name} is {values.tolist()}; allowed are finite numbers")
            statistics[name] = values
    return statistics


def _stored_statistics(key: str, folder: Path) -> dict[str, Tensor]:
    """Return the values in the file of the step that normalises; empty if there is no such step or file."""
    steps = read_json(folder / PREPROCESSING).get("steps", [])
    if not isinstance(steps, list) or not all(isinstance(each, dict) for each in steps):
        raise ConfigError(f"{key}: {PREPROCESSING} is damaged: its steps must be a list of objects")
    files = [each.get("state_file") for each in steps if each.get("registry_name") == "normalizer_processor"]
    if not files or files[0] is None:
        return {}
    if not isinstance(files[0], str) or Path(files[0]).name != files[0]:
        raise ConfigError(f"{key}: the state_file in {PREPROCESSING} is {files[0]!r}; allowed are files beside it")
    if (reason := why_unreadable(folder / files[0])) is not None:
        raise ConfigError(f"{key}: {files[0]} {reason}")
    return load_file(folder / files[0])


def write_steps(file: Path, steps: Sequence[Step], statistics: Mapping[str, np.ndarray]) -> None:
    """Write a file of steps, one of which normalises, and the file of its statistics beside it.

    Args:
        file: ``policy_preprocessor.json`` or ``policy_postprocessor.json``.
        steps: Steps in their order.
        statistics: Statistics by names such as ``action.mean``.
    """
    [place] = [place for place, each in enumerate(steps) if "norm_map" in each["config"]]
    state_file = f"{file.stem}_step_{place}_{steps[place]['registry_name']}.safetensors"
    named = [{**each, "state_file": state_file} if number == place else each for number, each in enumerate(steps)]
    save_file(dict(statistics), file.parent / state_file)
    write_object(file, {"name": file.stem, "steps": named})


def write_object(file: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file."""
    file.write_text(json.dumps(dict(content), indent=2) + "\n")
