"""Waiting for what another process does in its own time."""

import time
from collections.abc import Callable


def eventually(condition: Callable[[], object], seconds: float = 10.0) -> bool:
    """Return whether the condition holds, at the latest after so many seconds."""
    deadline = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(met)
