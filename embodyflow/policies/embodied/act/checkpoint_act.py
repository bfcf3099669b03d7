"""LeRobot's layout of ACT, as in https://huggingface.co/lerobot/act_aloha_sim_transfer_cube_human after its migration.

A checkpoint is a folder that LeRobot's ``save_pretrained`` wrote, or such a repository of the Hugging Face hub. It
holds ``config.json``, ``model.safetensors``, ``policy_preprocessor.json`` and the statistics that the latter names. A
folder exported here holds ``exploration.safetensors`` besides: the scale of the distribution that RL trains.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from embodyflow.errors import ConfigError
from embodyflow.policies.embodied.act.backbone_act import DEPTHS
from embodyflow.policies.embodied.act.configuration_act import ACTConfig
from embodyflow.policies.embodied.act.content_act import ENVIRONMENT, NUM_COLOURS, check_content, is_image
from embodyflow.policies.embodied.lerobot_processors import (
    ACTION,
    CONFIG,
    IMAGES,
    PREPROCESSING,
    STATE,
    WEIGHTS,
    read_statistics,
)
from embodyflow.policies.pretrained.checkpoints import checkpoint_folder, is_outline, read_json
from embodyflow.policies.pretrained.weight_files import check_weights, why_unreadable

KIND, TITLE = "act", "ACT"
EXPLORATION = "exploration.safetensors"
KINDS = ("mean", "std")
MODE, LEFT = "MEAN_STD", "IDENTITY"
"""LeRobot's names of standardisation, and of features left as they are, as all are that a mapping lacks."""
PUBLISHED_WIDTH = 64
"""Features of the first stage of torchvision's ResNets."""
AS_PUBLISHED: Mapping[str, Any] = MappingProxyType(
    {
        "n_obs_steps": 1,
        "pre_norm": False,
        "feedforward_activation": "relu",
        "replace_final_stride_with_dilation": False,
    }
)
"""Keys of ``config.json`` that have no other value here, as in the published models."""
DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        **AS_PUBLISHED,
        "chunk_size": 100,
        "vision_backbone": "resnet18",
        "pretrained_backbone_weights": None,
        "backbone_width": PUBLISHED_WIDTH,
        "dim_model": 512,
        "n_heads": 8,
        "dim_feedforward": 3200,
        "n_encoder_layers": 4,
        "n_decoder_layers": 1,
        "use_vae": True,
        "latent_dim": 32,
        "n_vae_encoder_layers": 4,
        "temporal_ensemble_coeff": None,
        "dropout": 0.1,
        "normalization_mapping": {"STATE": MODE, "VISUAL": MODE, "ACTION": MODE},
        "input_features": {},
        "output_features": {},
    }
)
"""Defaults of the keys in a ``config.json``."""
MAPPING: Mapping[str, str] = MappingProxyType(dict.fromkeys(("STATE", "ENV", "VISUAL", "ACTION"), MODE))
"""LeRobot's ``normalization_mapping`` of an exported policy."""


@dataclass(frozen=True)
class Description:
    """Everything about a checkpoint but its weights.

    Attributes:
        config: Content of its ``config.json``, with defaults.
        statistics: Values of the statistics' buffers, float32; may be empty.
        folder: Folder of the checkpoint; ``None`` for random weights.
    """

    config: Mapping[str, Any]
    statistics: Mapping[str, Tensor] = field(default_factory=dict)
    folder: Path | None = None

    @property
    def robot_state_dim(self) -> int:
        """Features of the robot's own state; may be 0."""
        return _size(self.config, STATE)

    @property
    def environment_state_dim(self) -> int:
        """Features of the environment's state; may be 0."""
        return _size(self.config, ENVIRONMENT)

    @property
    def action_dim(self) -> int:
        """A, dimensions of an action."""
        return int(self.config["output_features"][ACTION]["shape"][0])

    @property
    def horizon(self) -> int:
        """H, actions of a chunk."""
        return int(self.config["chunk_size"])


def image_names(described: Mapping[str, Any]) -> list[str]:
    """Return LeRobot's names of the images that a model reads, in their order."""
    return [name for name in described["input_features"] if is_image(name)]


def describe(config: ACTConfig) -> Description:
    """Return a model's description; weights are fetched but not read.

    Within ``torch.device("meta")`` they are not fetched.

    Raises:
        ConfigError: See :func:`read_checkpoint`.
    """
    if config.scratch is None:
        return read_checkpoint(config, weights=not is_outline())
    described = {**DEFAULTS, "chunk_size": config.chunk_size, **config.scratch.model_dump(), **_features(config)}
    return Description(described)


def read_checkpoint(config: ACTConfig, *, weights: bool) -> Description:
    """Read a checkpoint's description, from the hub where ``policy.path`` is no folder.

    Args:
        config: Configuration with ``path``.
        weights: Whether to fetch the weights too.

    Raises:
        ConfigError: It cannot be fetched, is of another kind, or contradicts the configuration; one line with the key.
    """
    assert config.path is not None
    key = f"policy.path={config.path}"
    beside = ["*.json", "policy_*.safetensors"]
    folder = checkpoint_folder(config.path, [*beside, WEIGHTS, EXPLORATION] if weights else beside, key)
    found = read_json(folder / CONFIG)
    if found.get("type") != KIND:
        problem = f"its type is {found.get('type')!r}" if found else f"it has no {CONFIG}"
        raise ConfigError(f"{key}: must hold LeRobot's {TITLE} (type {KIND!r}); {problem}")
    described = {**DEFAULTS, **found}
    check_content(key, described)
    _check_kind(key, described)
    if config.chunk_size > described["chunk_size"]:
        raise ConfigError(f"policy.chunk_size={config.chunk_size}: the checkpoint's is {described['chunk_size']}")
    _check_sizes(config, described)
    return Description(described, _statistics(key, config, folder, described), folder)


def check_checkpoint(config: ACTConfig) -> None:
    """Refuse a checkpoint that the policy cannot load, without reading weights.

    Raises:
        ConfigError: One line that names the key and what is allowed.
    """
    if config.path is None:
        return
    read_checkpoint(config, weights=False)
    folder, key = Path(config.path), f"policy.path={config.path}"
    if folder.is_dir():
        check_weights(folder, key)
        if (folder / EXPLORATION).exists() and (reason := why_unreadable(folder / EXPLORATION)) is not None:
            raise ConfigError(f"{key}: {EXPLORATION} {reason}")


def _features(config: ACTConfig) -> dict[str, Any]:
    """Return inputs and outputs of the configuration's sizes, in the form of ``config.json``."""
    images = {f"{IMAGES}{camera}": {"type": "VISUAL", "shape": [3, 256, 256]} for camera in config.cameras}
    own = config.state_dim - config.environment_state_dim
    states = {STATE: {"type": "STATE", "shape": [own]}}
    if config.environment_state_dim:
        states[ENVIRONMENT] = {"type": "ENV", "shape": [config.environment_state_dim]}
    return {
        "input_features": {**states, **images},
        "output_features": {ACTION: {"type": "ACTION", "shape": [config.action_dim]}},
        "normalization_mapping": dict(MAPPING),
    }


def _size(described: Mapping[str, Any], name: str) -> int:
    feature = described["input_features"].get(name)
    return int(feature["shape"][0]) if feature else 0


def _check_kind(key: str, described: Mapping[str, Any]) -> None:
    for name, value in AS_PUBLISHED.items():
        if described[name] != value:
            raise ConfigError(f"{key}: its {name} is {described[name]!r}; allowed is {value!r}")
    if described["vision_backbone"] not in DEPTHS:
        backbone = described["vision_backbone"]
        raise ConfigError(f"{key}: its vision_backbone is {backbone!r}; allowed are {', '.join(DEPTHS)}")
    unread = {"VISUAL"} if not image_names(described) else set[str]()
    unread |= {"STATE"} if not _size(described, STATE) else set[str]()
    for name in MAPPING.keys() - unread:
        mode = described["normalization_mapping"].get(name, LEFT)
        if mode != MODE and (name, mode) != ("ENV", LEFT):
            raise ConfigError(f"{key}: its normalization_mapping must have {name}: {MODE}")


def _check_sizes(config: ACTConfig, described: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of other sizes than the configuration's.

    Raises:
        ConfigError: One line that names key and size.
    """
    own, rest = _size(described, STATE), _size(described, ENVIRONMENT)
    if config.state_dim != own + rest:
        raise ConfigError(f"policy.state_dim={config.state_dim}: the checkpoint's states have {own} + {rest}")
    if config.environment_state_dim != rest:
        known = "null" if config.robot_state_dim is None else config.robot_state_dim
        raise ConfigError(f"policy.robot_state_dim={known}: the checkpoint's {STATE} has {own} of {own + rest}")
    action = described["output_features"].get(ACTION, {}).get("shape", ["no size in its config.json"])[0]
    if config.action_dim != action:
        raise ConfigError(f"policy.action_dim={config.action_dim}: the checkpoint's {ACTION} has {action}")
    images = image_names(described)
    if len(config.cameras) != len(images):
        raise ConfigError(
            f"policy.cameras={list(config.cameras)}: the checkpoint reads {', '.join(images) or 'no images'}"
        )
    names = [name.removeprefix(IMAGES) for name in images]
    if any(camera in names and camera != name for camera, name in zip(config.cameras, names, strict=True)):
        raise ConfigError(
            f"policy.cameras={list(config.cameras)}: the checkpoint reads {', '.join(names)}, and in this order"
        )


def _statistics(key: str, config: ACTConfig, folder: Path, described: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the values of the statistics' buffers, float32; with those of demonstrations, the images' alone.

    Raises:
        ConfigError: See :func:`~embodyflow.policies.embodied.lerobot_processors.read_statistics`.
    """
    images, values = image_names(described), dict[str, Tensor]()
    if config.normalization == "demonstrations" and not (folder / PREPROCESSING).exists():
        return {}  # a folder from before LeRobot's processors, whose images have the statistics of ImageNet by default
    vectors = [name for name in (STATE, ENVIRONMENT) if _size(described, name)]
    sizes = dict.fromkeys(images, NUM_COLOURS)
    if config.normalization == "checkpoint":
        sizes = {name: _size(described, name) for name in vectors} | {ACTION: config.action_dim} | sizes
    left = {}
    if described["normalization_mapping"].get("ENV", LEFT) == LEFT:
        size = _size(described, ENVIRONMENT)
        left = {f"{ENVIRONMENT}.mean": torch.zeros(size), f"{ENVIRONMENT}.std": torch.ones(size)}
    found = read_statistics(key, folder, sizes, KINDS, left)
    for kind in KINDS:
        if images:
            values[f"image_{kind}"] = torch.stack([found[f"{name}.{kind}"] for name in images])
        if config.normalization == "checkpoint":
            values[f"state_{kind}"] = torch.cat([found[f"{name}.{kind}"] for name in vectors])
            values[f"action_{kind}"] = found[f"{ACTION}.{kind}"]
    return values
