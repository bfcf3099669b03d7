"""Export of an ACT in the form of LeRobot's ``save_pretrained``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from embodyflow.policies.embodied.act.checkpoint_act import (
    EXPLORATION,
    KIND,
    KINDS,
    MAPPING,
    PUBLISHED_WIDTH,
    Description,
    image_names,
)
from embodyflow.policies.embodied.act.configuration_act import ACTConfig
from embodyflow.policies.embodied.act.content_act import ENVIRONMENT
from embodyflow.policies.embodied.act.modeling_act import SCALE, STATISTICS
from embodyflow.policies.embodied.lerobot_processors import (
    ACTION,
    CONFIG,
    POSTPROCESSING,
    PREPROCESSING,
    STATE,
    WEIGHTS,
    step,
    write_object,
    write_steps,
)


def write_checkpoint(
    config: ACTConfig, description: Description, weights: Mapping[str, np.ndarray], folder: Path
) -> None:
    """Write a policy's folder, whose images have the names of the checkpoint that training started from.

    Args:
        config: Configuration of the policy.
        description: Description that the policy was built from.
        weights: Weights by name, statistics and scale included.
        folder: Folder to write; created if missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    learned = {name: array for name, array in weights.items() if not name.startswith((STATISTICS, SCALE))}
    save_file(learned, folder / WEIGHTS)
    save_file({SCALE: weights[SCALE]}, folder / EXPLORATION)
    acting = {"type": KIND, "n_action_steps": config.chunk_size, "kl_weight": config.kl_weight}
    described: dict[str, Any] = {**description.config, **acting, "normalization_mapping": dict(MAPPING)}
    if config.chunk_size > 1:  # LeRobot ensembles with chunks of one executed action alone
        described["temporal_ensemble_coeff"] = None
    if described["backbone_width"] == PUBLISHED_WIDTH:  # LeRobot knows no such key
        del described["backbone_width"]
    write_object(folder / CONFIG, described)
    statistics = {
        name.removeprefix(STATISTICS): array for name, array in weights.items() if name.startswith(STATISTICS)
    }
    _write_processors(described, _lerobot_statistics(description, statistics), folder)


def _lerobot_statistics(description: Description, statistics: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the statistics by LeRobot's names."""
    own, named = description.robot_state_dim, dict[str, np.ndarray]()
    for kind in KINDS:
        states = statistics[f"state_{kind}"]
        parts = {STATE: states[:own], ENVIRONMENT: states[own:], ACTION: statistics[f"action_{kind}"]}
        named |= {f"{name}.{kind}": np.ascontiguousarray(values) for name, values in parts.items() if len(values)}
        for name, values in zip(image_names(description.config), statistics.get(f"image_{kind}", ()), strict=True):
            named[f"{name}.{kind}"] = np.ascontiguousarray(values[:, None, None])
    return named


def _write_processors(described: Mapping[str, Any], statistics: Mapping[str, np.ndarray], folder: Path) -> None:
    """Write LeRobot's processing before and after the model, with its statistics."""
    actions, mapping = described["output_features"], described["normalization_mapping"]
    everything = {**described["input_features"], **actions}
    normalising = {"eps": 1e-8, "norm_map": mapping}
    device = step("device_processor", device="cpu", float_dtype=None)
    before = [
        step("rename_observations_processor", rename_map={}),
        step("to_batch_processor"),
        device,
        step("normalizer_processor", features=everything, **normalising),
    ]
    after = [step("unnormalizer_processor", features=actions, **normalising), device]
    write_steps(folder / PREPROCESSING, before, statistics)
    of_actions = {name: values for name, values in statistics.items() if name.startswith(f"{ACTION}.")}
    write_steps(folder / POSTPROCESSING, after, of_actions)
