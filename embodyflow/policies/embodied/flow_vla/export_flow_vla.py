"""Export of folders in the form of LeRobot's ``save_pretrained``."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from embodyflow.policies.embodied.flow_vla.checkpoint_flow_vla import OWN_NAMES, VLM, Description, Layout
from embodyflow.policies.embodied.flow_vla.configuration_flow_vla import FlowVLAConfig
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

STATISTICS = "statistics."
"""Prefix of the weights that are statistics."""


def write_checkpoint(
    layout: Layout,
    config: FlowVLAConfig,
    description: Description,
    tokenizer: Any,
    weights: Mapping[str, np.ndarray],
    folder: Path,
) -> None:
    """Write a policy's folder.

    Args:
        layout: Layout of the kind of policy.
        config: Configuration of the policy.
        description: Description that the policy was built from.
        tokenizer: Tokenizer of ``transformers``.
        weights: Weights by name, statistics included.
        folder: Folder to write; created if missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    learned = {name: array for name, array in weights.items() if not name.startswith(STATISTICS)}
    save_file(layout.export_weights(learned), folder / WEIGHTS)
    acting = {"n_action_steps": config.chunk_size, layout.num_steps: config.num_steps}
    described = {**description.config, **acting, "tokenizer_max_length": config.max_prompt_tokens}
    write_object(folder / CONFIG, described)
    statistics = {name.removeprefix(STATISTICS): a for name, a in weights.items() if name.startswith(STATISTICS)}
    _write_processors(layout, described, statistics, folder)
    if layout.vlm_name(described) == VLM:  # the hub has no such model
        _write_vlm(description, tokenizer, folder / VLM)


def _write_processors(
    layout: Layout, described: Mapping[str, Any], statistics: Mapping[str, np.ndarray], folder: Path
) -> None:
    """Write LeRobot's processing before and after the model, with its statistics."""
    actions, mapping = described["output_features"], described["normalization_mapping"]
    everything = {**described["input_features"], **actions}
    words = {"max_length": described["tokenizer_max_length"], "task_key": "task", "padding_side": "right"}
    words |= {"padding": layout.padding, "truncation": True, "tokenizer_name": layout.vlm_name(described)}
    normalising = {"eps": 1e-8, "features": everything, "norm_map": mapping}
    device = step("device_processor", device="cpu", float_dtype=None)
    before = [
        step("rename_observations_processor", rename_map={}),
        step("to_batch_processor"),
        *layout.preprocessing(
            described, step("tokenizer_processor", **words), step("normalizer_processor", **normalising), device
        ),
    ]
    after = [step("unnormalizer_processor", **{**normalising, "features": actions}), device]
    for file, steps, names in ((PREPROCESSING, before, (STATE, ACTION)), (POSTPROCESSING, after, (ACTION,))):
        kinds = layout.statistics.kinds
        state = {f"{name}.{kind}": statistics[f"{OWN_NAMES[name]}_{kind}"] for name in names for kind in kinds}
        write_steps(folder / file, steps, state)


def _write_vlm(description: Description, tokenizer: Any, folder: Path) -> None:
    """Write sizes and tokenizer of the vision-language model."""
    if description.vlm_folder is not None:
        shutil.copytree(description.vlm_folder, folder, dirs_exist_ok=True)
        return
    folder.mkdir(exist_ok=True)
    write_object(folder / CONFIG, description.vlm)
    tokenizer.save_pretrained(folder)
