"""A detector of tests: iterations that were trained at more than a learning rate."""

from typing import Any

from embodyflow.health.history import Finding, History


def too_fast(history: History, config: Any) -> Finding | None:
    """Find the iteration ``at`` if its learning rate is above ``most``."""
    rate = history.newest("train/learning_rate")
    if rate is None or history.iterations[-1]["iteration"] != config.settings["at"] or rate <= config.settings["most"]:
        return None
    return Finding("train/learning_rate", rate, config.settings["most"], f"the rate {rate:g} is too high")
