"""Environments that die, hang or return NaN as a plan says.

The argument ``plan`` is the path of a JSON file. Its key ``faults`` is a list of faults such as
``{"seed": 3, "step": 5, "kind": "kill"}``. A fault occurs once, in the first episode with this seed that reaches the
step; with ``"always": true`` it occurs in every such episode. ``step`` -1 is the reset. The kind
``leak`` is a fault only with a limit of memory, so it is not among :data:`KINDS`.

The keys ``rate``, ``most``, ``kinds`` and ``chunk_size`` add random faults: ``rate`` is the share of action chunks with
a fault, ``most`` their largest number. There is at most one per chunk, because a second fault in a new process would be
blamed on the environment.

Each fault that occurred leaves a file beside the plan, ``<plan>.<seed>-<step>-<kind>``.
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

LEAK_BYTES = 700_000_000
_leaked: list[np.ndarray[Any, Any]] = []
KINDS = ("kill", "abort", "hang", "hang in native code", "nan", "nan reward")


class Faulty:
    """Mixin that injects the faults of a plan; place it before the environment's class."""

    def __init__(self, plan: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._path = Path(plan)
        self._plan = json.loads(self._path.read_text())

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._seed, self._step = seed, -1
        observation, info = super().reset(seed=seed, options=options)  # type: ignore[misc]
        return self._inject_fault(observation), info

    def step(self, action: Any) -> Any:
        self._step += 1
        observation, reward, *rest = super().step(action)  # type: ignore[misc]
        return self._inject_fault(observation), math.nan if self._kind == "nan reward" else reward, *rest

    def _inject_fault(self, observation: Any) -> Any:
        self._kind = self._fault()
        if self._kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._kind == "abort":
            os.abort()
        if self._kind == "hang":
            time.sleep(3600)
        if self._kind == "hang in native code":
            ctypes.PyDLL(None).sleep(3600)  # holds the interpreter's lock
        if self._kind == "leak":
            _leaked.append(np.ones(LEAK_BYTES, np.uint8))
        if self._kind == "nan" and isinstance(observation, dict):
            return {**observation, "state": observation["state"] * np.float32(math.nan)}
        return observation * np.float32(math.nan) if self._kind == "nan" else observation

    def _fault(self) -> str | None:
        for fault in self._plan.get("faults", ()):
            if (fault["seed"], fault["step"]) == (self._seed, self._step) and self._mark(fault):
                return str(fault["kind"])
        return self._random_fault() if "rate" in self._plan else None

    def _random_fault(self) -> str | None:
        chunk, step = divmod(self._step, self._plan["chunk_size"])
        drawn = hashlib.sha256(f"{self._seed}-{chunk}".encode()).digest()
        here = drawn[4] % self._plan["chunk_size"] == step
        if not here or int.from_bytes(drawn[:4], "little") >= self._plan["rate"] * 2**32:
            return None
        kind = str(self._plan["kinds"][drawn[5] % len(self._plan["kinds"])])
        return kind if len(fault_marks(self._path)) < self._plan["most"] and self._mark({"kind": kind}) else None

    def _mark(self, fault: dict[str, Any]) -> bool:
        """Create the fault's file; return False if the fault has occurred and must not occur again."""
        mark = self._path.with_name(f"{self._path.name}.{self._seed}-{self._step}-{fault['kind']}")
        try:
            mark.touch(exist_ok=fault.get("always", False))
        except FileExistsError:
            return False
        return True


def fault_marks(plan: Path) -> list[Path]:
    """Return the files of the faults that occurred."""
    return sorted(plan.parent.glob(f"{plan.name}.*"))


class FaultyPendulum(Faulty, PendulumEnv):  # type: ignore[misc]
    """A small environment with faults."""
