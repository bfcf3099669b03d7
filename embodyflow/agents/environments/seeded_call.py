"""Calls with seeded global random generators, for classes that draw from ``random`` or ``numpy.random``."""

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

_newest: object = None
"""The newest call. One that exceeded its time limit may still run, and must not reset the generators of a later one."""


def call_seeded(function: Callable[..., Any], values: Mapping[str, Any], seed: int) -> Any:
    """Call a function with seeded global generators, and restore their states after it.

    Only one such call may run at a time.

    Args:
        function: Function to call.
        values: Its keyword arguments.
        seed: Seed in ``[0, 2**63)``.
    """
    global _newest
    _newest = mine = object()
    states = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        return function(**values)
    finally:
        if _newest is mine:
            random.setstate(states[0])
            np.random.set_state(states[1])
