"""Environments that die, hang or give numbers that are none, where a plan says so.

The plan is a JSON file, given as ``plan``: ``faults``, a list of ``{"seed": 3, "step": 5, "kind": "kill"}``, and, for
random ones, ``rate``, ``most``, ``kinds`` and ``chunk_size``: the share of an episode's chunks of actions that have
one. Two in a chunk would be told as the environment's own doing: what fails again in a new process. A fault happens
once, to whichever episode of that seed comes there first, or, with ``"always": true``, whenever one does. ``step`` -1
is the reset. What happened leaves a file beside the plan, ``<plan>.<seed>-<step>-<kind>``.
"""

import ctypes
import hashlib
import json
import math
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.envs.classic_control.pendulum import PendulumEnv

KINDS = ("kill", "abort", "hang", "hang in native code", "nan", "nan reward")


class Faulty:
    """Goes before the class of an environment."""

    def __init__(self, plan: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._path = Path(plan)
        self._plan = json.loads(self._path.read_text())

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._seed, self._step = seed, -1
        observation, info = super().reset(seed=seed, options=options)  # type: ignore[misc]
        return self._disturbed(observation), info

    def step(self, action: Any) -> Any:
        self._step += 1
        observation, reward, *rest = super().step(action)  # type: ignore[misc]
        return self._disturbed(observation), math.nan if self._kind == "nan reward" else reward, *rest

    def _disturbed(self, observation: Any) -> Any:
        self._kind = self._fault()
        if self._kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._kind == "abort":
            os.abort()
        if self._kind == "hang":
            time.sleep(3600)
        if self._kind == "hang in native code":
            ctypes.PyDLL(None).sleep(3600)  # keeps the interpreter's lock
        if self._kind == "nan" and isinstance(observation, dict):
            return {**observation, "state": observation["state"] * np.float32(math.nan)}
        return observation * np.float32(math.nan) if self._kind == "nan" else observation

    def _fault(self) -> str | None:
        for fault in self._plan.get("faults", ()):
            if (fault["seed"], fault["step"]) == (self._seed, self._step) and self._happens(fault):
                return str(fault["kind"])
        return self._random_fault() if "rate" in self._plan else None

    def _random_fault(self) -> str | None:
        chunk, step = divmod(self._step, self._plan["chunk_size"])
        drawn = hashlib.sha256(f"{self._seed}-{chunk}".encode()).digest()
        here = drawn[4] % self._plan["chunk_size"] == step
        if not here or int.from_bytes(drawn[:4], "little") >= self._plan["rate"] * 2**32:
            return None
        kind = str(self._plan["kinds"][drawn[5] % len(self._plan["kinds"])])
        return kind if len(happened(self._path)) < self._plan["most"] and self._happens({"kind": kind}) else None

    def _happens(self, fault: dict[str, Any]) -> bool:
        mark = self._path.with_name(f"{self._path.name}.{self._seed}-{self._step}-{fault['kind']}")
        try:
            mark.touch(exist_ok=fault.get("always", False))
        except FileExistsError:
            return False
        return True


def happened(plan: Path) -> list[Path]:
    """Return the marks of the faults that there were."""
    return sorted(plan.parent.glob(f"{plan.name}.*"))


class FaultyPendulum(Faulty, PendulumEnv):  # type: ignore[misc]
    """A small one."""
