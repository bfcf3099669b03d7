"""What the course of a flow run's states tells."""

from collections.abc import Iterable


def was_cancelled(kinds: Iterable[str]) -> bool:
    """Say whether somebody has cancelled the run since it last began.

    Prefect ends the process of a run that is cancelled, which it reports as a crash.

    Args:
        kinds: types of its states, such as ``"CRASHED"``, the newest first.
    """
    for kind in kinds:
        if kind in ("CANCELLING", "CANCELLED"):
            return True
        if kind == "RUNNING":
            return False
    return False
