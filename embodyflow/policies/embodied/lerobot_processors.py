"""LeRobot's files beside a policy's weights: its processing before and after the model, with statistics."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from safetensors.torch import load_file
from torch import Tensor

from embodyflow.policies.pretrained.checkpoints import read_json

CONFIG, WEIGHTS = "config.json", "model.safetensors"
PREPROCESSING, POSTPROCESSING = "policy_preprocessor.json", "policy_postprocessor.json"
STATE, ACTION, IMAGES = "observation.state", "action", "observation.images."

Step = dict[str, Any]
"""A step of LeRobot's processing before or after a model."""


def step(name: str, **config: Any) -> Step:
    """Return a step of LeRobot's processing, by its name in LeRobot's registry."""
    return {"registry_name": name, "config": config}


def read_statistics(folder: Path) -> dict[str, Tensor]:
    """Return the statistics of the step that normalises, by names such as ``action.mean``; empty without statistics.

    Raises:
        ConfigError: The description of the steps is damaged.
    """
    steps = read_json(folder / PREPROCESSING).get("steps", [])
    files = [each.get("state_file") for each in steps if each.get("registry_name") == "normalizer_processor"]
    return load_file(folder / files[0]) if files and files[0] else {}


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
