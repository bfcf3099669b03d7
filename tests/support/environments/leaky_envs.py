"""Environments that leak memory, grow without end, or flood the output."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.envs.classic_control.pendulum import PendulumEnv

LEAK_BYTES = 10_000_000
_leaked: list[np.ndarray[Any, Any]] = []


def leak(num_bytes: int = LEAK_BYTES) -> None:
    """Keep memory of this process for ever."""
    _leaked.append(np.ones(num_bytes, np.uint8))


class LeakyPendulum(PendulumEnv):
    """Leaks :data:`LEAK_BYTES` in each reset and, if ``in_steps``, in each step."""

    def __init__(self, *, in_steps: bool = False) -> None:
        super().__init__()
        self._in_steps = in_steps

    def reset(self, **kwargs: Any) -> Any:
        leak()
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        if self._in_steps:
            leak()
        return super().step(action)


class GrowingPendulum(PendulumEnv):
    """Grows by 300 MB in its first step and keeps computing; a file, which it creates, says that it has."""

    def __init__(self, mark: Path) -> None:
        super().__init__()
        self._mark = mark

    def step(self, action: Any) -> Any:
        if not self._mark.exists():
            self._mark.touch()
            leak(300_000_000)
            time.sleep(60.0)
        return super().step(action)


class PrintingPendulum(PendulumEnv):
    """Prints 40 kB in each step, half of them by Python and half by the descriptors, on stdout and on stderr."""

    def step(self, action: Any) -> Any:
        for stream, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
            print("p" * 10_000, file=stream, flush=True)
            os.write(descriptor, b"d" * 10_000)
        return super().step(action)
