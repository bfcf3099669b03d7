"""A corridor that an agent walks by text, with faults where a test wants them."""

import itertools
import time
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
from gymnasium import spaces

LENGTH = 5
PLACES = tuple(f"place {place}" for place in range(LENGTH))
FAULTS: dict[tuple[int, int], list[str]] = {}
"""Faults that :class:`Corridor` still has, by seed and number of the step, 0 for the reset."""

_instances = itertools.count()


class Corridor(gym.Env[Any, Any]):
    """A corridor of five places. It begins at the seed modulo 3, the last place is the goal, and eight steps end it.

    Args:
        text: Texts instead of numbers, for both spaces.
        drifts: Another text in each instance, so that an episode cannot be repeated.
        paid: Reward at the goal.
    """

    def __init__(self, text: bool = False, drifts: bool = False, paid: float = 1.0) -> None:
        letters = "abcdefghijklmnopqrstuvwxyz0123456789 "
        self.observation_space = spaces.Text(20, charset=letters) if text else spaces.Discrete(LENGTH, start=10)
        self.action_space = spaces.Text(4, charset=letters) if text else spaces.Discrete(3)
        self._text, self._paid = text, paid
        self._suffix = f" {next(_instances)}" if drifts else ""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        assert seed is not None
        self._seed, self._place, self._steps = seed, seed % 3, 0
        self._fail()
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        self._fail()
        self._place += {"on": 1, 1: 1, "back": -1, 0: -1}.get(action, 0)
        self._place = max(self._place, 0)
        arrived = self._place == LENGTH - 1
        return self._observation(), self._paid if arrived else 0.0, arrived, self._steps == 8, {}

    def _observation(self) -> Any:
        return f"{PLACES[self._place]}{self._suffix}" if self._text else 10 + self._place

    def _fail(self) -> None:
        if faults := FAULTS.get((self._seed, self._steps)):
            match faults.pop():
                case "error":
                    raise OSError("the simulator is gone")
                case "hang":
                    time.sleep(0.5)


def always_on(env: gym.Env[Any, Any]) -> Iterator[Any]:
    """Yield the action that leads to the goal."""
    return itertools.repeat(1)


def always_waiting(env: gym.Env[Any, Any]) -> Iterator[Any]:
    """Yield the action that has no name in the tests."""
    return itertools.repeat(2)


def always_back(env: gym.Env[Any, Any]) -> Iterator[Any]:
    """Yield the action that leads away from the goal."""
    return itertools.repeat(0)


gym.register("Corridor-v0", entry_point=Corridor)
