"""Frames that an environment renders of itself, or the reason why it renders none."""

import contextlib
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from embodyflow.config.robots.environment import EnvConfig
from embodyflow.simulation.make_env import make_env

RENDER_ERRORS = (TypeError, ValueError, AssertionError, NotImplementedError, ImportError, gym.error.Error)
"""Errors by which an environment refuses to render: it has no ``render_mode``, not this one, or lacks a library."""


class CannotDrawError(RuntimeError):
    """An environment renders no frames; the message names it and gives the reason."""


@contextlib.contextmanager
def drawing_env(config: EnvConfig, task: str | None, split: str) -> Iterator[gym.Env[Any, Any]]:
    """Build an environment that renders frames for :func:`frame_of`; close it on exit.

    Raises:
        CannotDrawError: The environment cannot be built with ``render_mode="rgb_array"``.
    """
    with _raise_cannot_draw(config):
        env = make_env(config, task, split, render_mode="rgb_array")
    with contextlib.closing(env):
        yield env


def frame_of(config: EnvConfig, env: gym.Env[Any, Any]) -> NDArray[np.uint8]:
    """Return the current frame, uint8 ``[H, W, 3]``, of an environment from :func:`drawing_env`.

    Raises:
        CannotDrawError: The environment renders nothing, or something other than such a frame.
    """
    with _raise_cannot_draw(config):
        frame = np.asarray(env.render())
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
            found = f"{frame.dtype} {frame.shape}" if frame.ndim else str(frame)
            raise ValueError(f"render() must return uint8 [H, W, 3], returned {found}")
    return frame


@contextlib.contextmanager
def _raise_cannot_draw(config: EnvConfig) -> Iterator[None]:
    """Raise :class:`CannotDrawError` in place of the errors by which an environment refuses to render."""
    try:
        yield
    except RENDER_ERRORS as error:
        message = str(error).partition(" was raised")[0].partition("\n")[0]  # Gymnasium appends all arguments
        reason = f"{type(error).__name__}: {message}" if message else type(error).__name__
        raise CannotDrawError(f"env.id={config.id}: cannot render with render_mode=rgb_array: {reason}") from error
