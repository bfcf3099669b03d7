"""Waiting for the effects of another process."""

import time
from collections.abc import Callable


def eventually(condition: Callable[[], object], seconds: float = 10.0) -> bool:
    """Wait up to ``seconds`` for the condition; return True if it was met."""
    deadline = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(met)
