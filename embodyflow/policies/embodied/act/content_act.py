"""Whether the content of an ACT's ``config.json`` has the types that its model needs."""

from collections.abc import Mapping
from typing import Any, TypeGuard

from embodyflow.errors import ConfigError
from embodyflow.policies.embodied.lerobot_processors import ACTION, IMAGES, STATE

ENVIRONMENT = "observation.environment_state"
COUNTS = (
    "chunk_size",
    "dim_model",
    "n_heads",
    "dim_feedforward",
    "n_encoder_layers",
    "n_decoder_layers",
    "n_vae_encoder_layers",
    "latent_dim",
    "backbone_width",
)
"""Keys that count something."""
OBJECTS = ("input_features", "output_features", "normalization_mapping")
NUM_COLOURS = 3


def is_image(name: str) -> bool:
    """Return True if LeRobot's name of a feature is that of an image."""
    return name.startswith(IMAGES) or name == IMAGES[:-2]


def check_content(key: str, described: Mapping[str, Any]) -> None:
    """Refuse values of other types, and sizes that fit no model.

    Args:
        key: Key and value that name the checkpoint.
        described: Content of ``config.json``, with defaults.

    Raises:
        ConfigError: One line that names the value and what is allowed.
    """
    for name in COUNTS:
        if not _is_count(described[name]):
            raise ConfigError(f"{key}: its {name} is {described[name]!r}; allowed are whole numbers from 1")
    size, num_heads = described["dim_model"], described["n_heads"]
    if size % num_heads:
        raise ConfigError(f"{key}: its dim_model is {size}; allowed are multiples of its n_heads, {num_heads}")
    if not isinstance(described["use_vae"], bool):
        raise ConfigError(f"{key}: its use_vae is {described['use_vae']!r}; allowed are true and false")
    for name in OBJECTS:
        if not isinstance(described[name], dict):
            raise ConfigError(f"{key}: its {name} is {described[name]!r}; allowed is an object")
    for name, feature in {**described["input_features"], **described["output_features"]}.items():
        shape = feature.get("shape") if isinstance(feature, dict) else None
        if name in (STATE, ENVIRONMENT, ACTION) and not (_is_shape(shape) and len(shape) == 1):
            raise ConfigError(f"{key}: the shape of its {name} is {shape!r}; allowed is one whole number from 1")
        if is_image(name) and not (_is_shape(shape) and len(shape) == 3 and shape[0] == NUM_COLOURS):
            raise ConfigError(f"{key}: the shape of its {name} is {shape!r}; allowed is [{NUM_COLOURS}, height, width]")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_shape(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(_is_count(each) for each in value)
