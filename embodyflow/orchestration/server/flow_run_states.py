"""The history of a flow run's states."""

from collections.abc import Iterable


def was_cancelled(state_types: Iterable[str]) -> bool:
    """Return True if the flow run has been cancelled since it last started.

    Prefect ends the process of a cancelled run and then reports a crash.

    Args:
        state_types: Types of its states, such as ``"CRASHED"``, newest first.
    """
    for state_type in state_types:
        if state_type in ("CANCELLING", "CANCELLED"):
            return True
        if state_type == "RUNNING":
            return False
    return False
