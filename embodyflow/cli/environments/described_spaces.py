"""Gymnasium's spaces in words: shapes, and which dimensions have bounds."""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict

from embodyflow.policies.env_match import one_line
from embodyflow.policies.observations import STATE_KEY


def entries_of_space(space: gym.Space[Any]) -> Mapping[str, gym.Space[Any]]:
    """Return the entries of an observation space by name; a space that is not a Dict is the state."""
    return space.spaces if isinstance(space, Dict) else {STATE_KEY: space}


def is_bounded(space: gym.Space[Any]) -> bool:
    """Return True if every dimension of a Box has both bounds, and for any other space."""
    return not isinstance(space, Box) or all(bool(each.all()) for each in _bounds(space))


def describe_space(space: gym.Space[Any]) -> str:
    """Return the shape of a Box and how many of its dimensions are bounded, half-bounded and unbounded."""
    if not isinstance(space, Box):
        return one_line(space)
    below, above = _bounds(space)
    counts = {
        "bounded": int((below & above).sum()),
        "half-bounded (below)": int((below & ~above).sum()),
        "half-bounded (above)": int((above & ~below).sum()),
        "unbounded": int((~below & ~above).sum()),
    }
    kinds = {kind: count for kind, count in counts.items() if count}
    if set(kinds) == {"bounded"}:
        return f"{space.shape} bounded by [{space.low.min():.4g}, {space.high.max():.4g}]"
    parts = [kind if len(kinds) == 1 else f"{count} {kind}" for kind, count in kinds.items()]
    return f"{space.shape} {', '.join(parts) or 'empty'}"


def _bounds(space: Box[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the flags of dimensions with a lower and with an upper bound. The largest float counts as no bound."""
    if space.dtype is None or space.dtype.kind != "f":
        return space.bounded_below, space.bounded_above
    largest = np.finfo(space.dtype).max
    return space.bounded_below & (space.low > -largest), space.bounded_above & (space.high < largest)
