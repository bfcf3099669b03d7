"""The positions that each layer of a language model attends to, by the model's configuration in transformers."""

from typing import Any

import torch

from embodyflow.errors import ConfigError

Window = int | None
"""Number of latest positions that a layer attends to, a token's own included; ``None`` means all."""

KINDS = ("full_attention", "sliding_attention")
"""Kinds of layers, by their names in transformers, whose attention a window describes."""


def windows_of(config: Any) -> tuple[Window, ...]:
    """Return the window of each layer.

    Args:
        config: Configuration of a model in transformers.

    Raises:
        ConfigError: A layer does not attend to the latest positions only; the message names the architecture.
    """
    kinds, window = getattr(config, "layer_types", None), getattr(config, "sliding_window", None)
    if kinds is None:
        kinds = [KINDS[0] if window is None else KINDS[1]] * config.num_hidden_layers
    others = sorted({*kinds} - {*KINDS})
    if "local" in getattr(config, "attention_layers", ()):
        others = ["local"]
    if others:
        raise ConfigError(f"{config.model_type} has layers of the kind {others[0]}; allowed are {' and '.join(KINDS)}")
    if getattr(config, "use_bidirectional_attention", None):
        raise ConfigError(f"{config.model_type} attends to later tokens; allowed are causal models")
    return tuple(window if kind == KINDS[1] else None for kind in kinds)


def has_windows(config: Any) -> bool:
    """Return True if :func:`windows_of` describes every layer of the model."""
    try:
        windows_of(config)
    except ConfigError:
        return False
    return True


def seen_within(places: torch.Tensor, positions: torch.Tensor, window: Window) -> torch.Tensor:
    """Return the mask of the places that tokens see: those up to their own position and within the window.

    Args:
        places: Positions of keys, int64.
        positions: Positions of queries, int64, in a shape that broadcasts with ``places``.
        window: Window of the layer.

    Returns:
        Mask, bool, in the shape of both together.
    """
    seen = places <= positions
    return seen if window is None else seen & (places > positions - window)
