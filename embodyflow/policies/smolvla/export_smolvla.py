"""Folders as LeRobot's ``save_pretrained`` writes them."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from embodyflow.policies.smolvla.checkpoint_smolvla import (
    ACTION,
    CONFIG,
    PREPROCESSING,
    STATE,
    VLM,
    WEIGHTS,
    Description,
)
from embodyflow.policies.smolvla.configuration_smolvla import SmolVLAConfig

POSTPROCESSING = "policy_postprocessor.json"
STATISTICS = "statistics."
"""Before the names of weights that are statistics."""


def write_checkpoint(
    config: SmolVLAConfig,
    description: Description,
    tokenizer: Any,
    weights: Mapping[str, np.ndarray],
    folder: Path,
) -> None:
    """Write a policy's folder.

    Args:
        config: of the policy.
        description: of what it was built from.
        tokenizer: of ``transformers``.
        weights: by name, those of the statistics among them.
        folder: created where it is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: array for name, array in weights.items() if not name.startswith(STATISTICS)}, folder / WEIGHTS)
    acting = {"n_action_steps": config.chunk_size, "num_steps": config.num_steps}
    described = {**description.config, **acting, "tokenizer_max_length": config.max_prompt_tokens}
    _write(folder / CONFIG, described)
    statistics = {name.removeprefix(STATISTICS): a for name, a in weights.items() if name.startswith(STATISTICS)}
    _write_processors(described, statistics, folder)
    _write_vlm(description, tokenizer, folder / VLM)


def _write_processors(described: Mapping[str, Any], statistics: Mapping[str, np.ndarray], folder: Path) -> None:
    """Write what LeRobot does before and after the model, with the statistics it does so by."""
    actions, mapping = described["output_features"], described["normalization_mapping"]
    everything = {**described["input_features"], **actions}
    words = {"max_length": described["tokenizer_max_length"], "task_key": "task", "padding_side": "right"}
    words |= {"padding": "longest", "truncation": True, "tokenizer_name": described["vlm_model_name"]}
    before = [
        _step("rename_observations_processor", rename_map={}),
        _step("to_batch_processor"),
        _step("smolvla_new_line_processor"),
        _step("tokenizer_processor", **words),
        _step("device_processor", device="cpu", float_dtype=None),
        _step("normalizer_processor", eps=1e-8, features=everything, norm_map=mapping),
    ]
    after = [
        _step("unnormalizer_processor", eps=1e-8, features=actions, norm_map=mapping),
        _step("device_processor", device="cpu", float_dtype=None),
    ]
    both = ((PREPROCESSING, before, 5, (STATE, ACTION)), (POSTPROCESSING, after, 0, (ACTION,)))
    for file, steps, place, names in both:
        pipeline = Path(file).stem
        state_file = f"{pipeline}_step_{place}_{steps[place]['registry_name']}.safetensors"
        steps[place]["state_file"] = state_file
        state = {f"{n}.{kind}": statistics[f"{n.split('.')[-1]}_{kind}"] for n in names for kind in ("mean", "std")}
        save_file(state, folder / state_file)
        _write(folder / file, {"name": pipeline, "steps": steps})


def _write_vlm(description: Description, tokenizer: Any, folder: Path) -> None:
    """Write what the vision-language model is like, where it is none of the hub's."""
    if description.config["vlm_model_name"] != VLM:
        return
    if description.vlm_folder is not None:
        shutil.copytree(description.vlm_folder, folder, dirs_exist_ok=True)
        return
    folder.mkdir(exist_ok=True)
    _write(folder / CONFIG, description.vlm)
    tokenizer.save_pretrained(folder)


def _step(name: str, **config: Any) -> dict[str, Any]:
    return {"registry_name": name, "config": config}


def _write(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(dict(content), indent=2) + "\n")
