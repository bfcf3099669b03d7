"""Description of an OpenVLA checkpoint: its sizes, statistics of actions and preparation of images.

A checkpoint is a folder or a repository of the Hugging Face hub, such as https://huggingface.co/openvla/openvla-7b. It
holds ``config.json``, weights in safetensors and a tokenizer. It may hold ``preprocessor_config.json``, and
``dataset_statistics.json``, whose statistics replace those of ``config.json``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from huggingface_hub import HfApi
from huggingface_hub.errors import OfflineModeIsEnabled

from embodyflow.errors import ConfigError
from embodyflow.policies.embodied.openvla.configuration_openvla import OpenVLAConfig
from embodyflow.policies.pretrained.checkpoints import checkpoint_folder, read_json
from embodyflow.policies.pretrained.weight_files import why_unreadable

CONFIG, PREPROCESSING, STATISTICS = "config.json", "preprocessor_config.json", "dataset_statistics.json"
BESIDE_WEIGHTS = ("*.json", "*.py", "*.model")
WEIGHTS = "*.safetensors"
HEADS = ("action_head*.pt", "proprio_projector*.pt")
"""Weights beside those of the model in checkpoints of OpenVLA-OFT with a regression head."""
NUM_ACTION_BINS = 256
PADDED_TO = 64
"""Rows that published models add to the embedding, beyond the vocabulary."""


@dataclass(frozen=True)
class Description:
    """Everything about a checkpoint but its weights.

    Attributes:
        config: Content of its ``config.json``.
        statistics: Statistics of the actions by data set: ``q01``, ``q99`` and possibly ``mask``, each ``[A]``.
        preprocessing: Content of its ``preprocessor_config.json``; empty without one.
        folder: Folder of the checkpoint; ``None`` for random weights.
        states: Statistics of the states by data set, as those of the actions; empty where a checkpoint has none.
    """

    config: Mapping[str, Any]
    statistics: Mapping[str, Mapping[str, Any]]
    preprocessing: Mapping[str, Any]
    folder: Path | None
    states: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def read_checkpoint(path: str, *, weights: bool) -> Description:
    """Read a checkpoint's description, from the hub where ``path`` is no folder.

    Args:
        path: Folder, or name on the hub.
        weights: Whether to fetch the weights too.

    Raises:
        ConfigError: It cannot be fetched, or is no OpenVLA; one line that names the key.
    """
    patterns = [*BESIDE_WEIGHTS, WEIGHTS, *HEADS] if weights else BESIDE_WEIGHTS
    folder = checkpoint_folder(path, patterns, f"policy.path={path}")
    config = read_json(folder / CONFIG)
    if config.get("model_type") != "openvla":
        found = f"its model_type is {config['model_type']!r}" if config else f"it has no {CONFIG}"
        raise ConfigError(f"policy.path={path}: must hold an OpenVLA (model_type 'openvla'); {found}")
    statistics = read_json(folder / STATISTICS) or config.get("norm_stats") or {}
    return Description(
        config=config,
        statistics={name: entry["action"] for name, entry in statistics.items()},
        preprocessing=read_json(folder / PREPROCESSING),
        folder=folder,
        states={name: entry["proprio"] for name, entry in statistics.items() if entry.get("proprio")},
    )


def describe_scratch(config: OpenVLAConfig, num_words: int) -> Description:
    """Describe a model of random weights like a checkpoint whose actions are not scaled.

    Args:
        config: Configuration with ``scratch``.
        num_words: Words of the tokenizer, which the action tokens follow.
    """
    scratch, action_dim = config.scratch, config.action_dim
    assert scratch is not None
    data_set = config.unnorm_key or "scratch"
    tower = {
        "image_size": scratch.image_size,
        "patch_size": scratch.patch_size,
        "hidden_size": scratch.vision_hidden_size,
        "mlp_size": 2 * scratch.vision_hidden_size,
        "num_layers": scratch.num_vision_layers,
        "num_heads": scratch.num_attention_heads,
    }
    towers = [{"family": "dinov2", "num_registers": 4, **tower}, {"family": "siglip", "num_registers": 0, **tower}]
    text = {
        name: getattr(scratch, name)
        for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    }
    statistics = {"q01": [-1.0] * action_dim, "q99": [1.0] * action_dim, "mask": [True] * action_dim}
    described = {
        "model_type": "openvla",
        "architectures": ["OpenVLAForActionPrediction"],
        "image_resize_strategy": "resize-naive",
        "image_sizes": [scratch.image_size] * len(towers),
        "n_action_bins": NUM_ACTION_BINS,
        "norm_stats": {data_set: {"action": statistics}},
        "pad_to_multiple_of": PADDED_TO,
        "text_config": {"model_type": "llama", "vocab_size": num_words + NUM_ACTION_BINS + PADDED_TO, **text},
        "timm_model_ids": ["scratch_dinov2", "scratch_siglip"],
        "vision_towers": towers,
        "use_fused_vision_backbone": True,
    }
    return Description(described, {data_set: statistics}, preprocessing={}, folder=None)


def data_set_of(config: OpenVLAConfig, description: Description) -> str:
    """Return the data set whose statistics scale the actions.

    Raises:
        ConfigError: There are no statistics of that name.
    """
    known = description.statistics
    key = next(iter(known)) if config.unnorm_key is None and len(known) == 1 else str(config.unnorm_key)
    # LIBERO's data sets are published without the actions that do nothing, under a name that says so.
    key = f"{key}_no_noops" if key not in known and f"{key}_no_noops" in known else key
    if key not in known:
        names = ", ".join(known) or "none: the checkpoint has no statistics"
        raise ConfigError(f"policy.unnorm_key={config.unnorm_key}: allowed are {names}")
    return key


def statistics_of(config: OpenVLAConfig, description: Description) -> Mapping[str, Any]:
    """Return the statistics that scale the actions.

    Raises:
        ConfigError: There are no statistics of that name, or they have another number of dimensions.
    """
    key = data_set_of(config, description)
    statistics = description.statistics[key]
    if len(statistics["q01"]) != config.action_dim:
        raise ConfigError(
            f"policy.action_dim={config.action_dim}: the checkpoint's actions of {key} have {len(statistics['q01'])}"
        )
    return statistics


def check_checkpoint(config: OpenVLAConfig) -> None:
    """Refuse a checkpoint that the policy cannot load, without reading weights.

    Raises:
        ConfigError: One line that names the key and what is allowed.
    """
    if config.path is None:
        return
    if any(name.startswith("action_head") for name in check_files(config, config.path)):
        raise ConfigError(
            f"policy.path={config.path}: predicts actions by a regression head (action_head…), which has no "
            "probabilities to train on; allowed are checkpoints fine-tuned on action tokens, and this one with "
            "policy=openvla_l1"
        )


def check_files(config: OpenVLAConfig, path: str) -> list[str]:
    """Check the statistics, the tokenizer and the headers of the weights; return the names of the files.

    Args:
        config: Configuration with ``path``.
        path: Its path.

    Raises:
        ConfigError: One line that names the key and what is allowed.
    """
    statistics_of(config, read_checkpoint(path, weights=False))
    names = _file_names(path)
    if names and not any(name.endswith(".safetensors") for name in names):
        raise ConfigError(f"policy.path={path}: has no weights in safetensors")
    for name in names if Path(path).is_dir() else ():
        if name.endswith(".safetensors") and (reason := why_unreadable(Path(path, name))) is not None:
            raise ConfigError(f"policy.path={path}: {name} {reason}")
    if names and config.tokenizer is None and "tokenizer.json" not in names:
        raise ConfigError(f"policy.path={path}: has no tokenizer.json; set policy.tokenizer to one that has")
    return names


def _file_names(path: str) -> list[str]:
    """Return the checkpoint's files; none if the hub cannot be reached, since a cached checkpoint does not need it."""
    if Path(path).is_dir():
        return sorted(entry.name for entry in Path(path).iterdir())
    try:
        return HfApi().list_repo_files(path)
    except (OfflineModeIsEnabled, httpx.HTTPError):
        return []
