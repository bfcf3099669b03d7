"""Scaling of actions between [-1, 1] and an environment's own bounds."""

import functools
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from numpy.typing import NDArray


@dataclass(frozen=True)
class ActionScale:
    """A map between actions in [-1, 1] and those of an environment.

    Attributes:
        own: Action space of the environment, a Box of floats with finite bounds.
    """

    own: Box[np.floating[Any]]

    @classmethod
    def of(cls, space: gym.Space[Any]) -> "ActionScale | None":
        """Return the map for an action space; ``None`` for a discrete space, which has nothing to scale.

        Raises:
            ValueError: The space is neither discrete nor a Box of floats with finite bounds.
        """
        if isinstance(space, Discrete | MultiDiscrete | MultiBinary):
            return None
        if isinstance(space, Box) and np.issubdtype(space.dtype, np.floating) and _has_finite_width(space):
            return cls(space)
        found = " ".join(str(space).split())  # arrays of a space are printed in several lines
        raise ValueError(
            f"its actions must be discrete or a Box of floats with finite bounds, are {found}; a wrapper can do it"
        )

    @property
    def space(self) -> Box[np.float32]:
        """The space of actions in [-1, 1], float32 ``[A]``."""
        return Box(-1.0, 1.0, self.own.shape, np.float32)

    def to_own(self, action: NDArray[np.float32]) -> NDArray[Any]:
        """Scale an action from [-1, 1] to the environment's bounds; the clip corrects rounding."""
        if self._is_unit:
            return action
        low, high = self._bounds
        own = low + (np.asarray(action, np.float64) + 1.0) / 2.0 * (high - low)
        return np.clip(own, low, high).astype(self.own.dtype)

    def to_unit(self, own: NDArray[np.float64]) -> NDArray[np.float32]:
        """Scale an action of the environment, clipped to its bounds, to [-1, 1]."""
        low, high = self._bounds
        width = high - low
        # In a dimension of zero width every action is the same.
        return (2.0 * (np.clip(own, low, high) - low) / np.where(width > 0, width, 1.0) - 1.0).astype(np.float32)

    @functools.cached_property
    def _is_unit(self) -> bool:
        return bool((self.own.low == -1).all() and (self.own.high == 1).all())

    @functools.cached_property
    def _bounds(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return self.own.low.astype(np.float64), self.own.high.astype(np.float64)


def _has_finite_width(space: Box[np.floating[Any]]) -> bool:
    """Return True if the bounds are known; the largest numbers of a dtype stand for unknown ones, as infinity does."""
    with np.errstate(over="ignore"):  # the distance of the largest numbers is infinite
        width = space.high.astype(np.float64) - space.low.astype(np.float64)
    return bool((width < np.finfo(np.float32).max / 2).all())
