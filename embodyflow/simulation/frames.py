"""Pictures that an environment draws of itself, or why it has none to give."""

import contextlib
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from embodyflow.config.environment import EnvConfig
from embodyflow.simulation.make_env import make_env

REFUSALS = (TypeError, ValueError, AssertionError, NotImplementedError, ImportError, gym.error.Error)
"""How an environment that can be made says that it cannot be made, or asked, to draw: it knows no ``render_mode``, not
this one, or lacks what it draws with."""


class CannotDrawError(RuntimeError):
    """An environment gives no pictures; the message names it and says why."""


@contextlib.contextmanager
def drawing_env(env: EnvConfig, task: str | None, split: str) -> Iterator[gym.Env[Any, Any]]:
    """Make an environment that draws itself for :func:`frame_of`, and close it in the end.

    Raises:
        CannotDrawError: it can be made, but not so.
    """
    with _told(env):
        made = make_env(env, task, split, render_mode="rgb_array")
    with contextlib.closing(made):
        yield made


def frame_of(env: EnvConfig, made: gym.Env[Any, Any]) -> NDArray[np.uint8]:
    """Return the present frame, uint8 ``[H, W, 3]``, of an environment that was made to draw.

    Raises:
        CannotDrawError: it draws none, or something else.
    """
    with _told(env):
        frame = np.asarray(made.render())
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
            found = f"{frame.dtype} {frame.shape}" if frame.ndim else str(frame)
            raise ValueError(f"render() gives {found}, not uint8 [H, W, 3]")
    return frame


@contextlib.contextmanager
def _told(env: EnvConfig) -> Iterator[None]:
    try:
        yield
    except REFUSALS as error:
        said = str(error).partition(" was raised")[0].partition("\n")[0]  # Gymnasium adds all arguments
        reason = f"{type(error).__name__}: {said}" if said else type(error).__name__
        raise CannotDrawError(f"env.id={env.id}: gives no pictures by render_mode=rgb_array: {reason}") from error
