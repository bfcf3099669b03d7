"""The one name of a run: its folder, its flow run and its artifacts have it.

It is the ``run_id``, ``resume`` or ``sweep_id`` of the request, or else the name of the flow run: the one in the form
of the Prefect UI, of ``prefect deployment run --name``, or the one that Prefect made up.

Prefect is imported where a flow runs: it takes a second, for which each check of a request would wait.
"""

import re
from pathlib import Path

from embodyflow.config.base import RUN_NAME_PATTERN
from embodyflow.orchestration.server.availability import is_unavailable

MAX_LENGTH = 80
"""Most characters of a name that is taken from a flow run; a suffix may follow."""


def flow_run_name() -> str:
    """Return the name of the current flow run; Prefect calls this when a run of the flow starts."""
    from prefect.runtime import flow_run

    parameters = flow_run.parameters
    named = (parameters.get(key) for key in ("run_id", "resume", "sweep_id"))
    return next((str(each) for each in named if each), as_run_name(str(flow_run.name)))


def as_run_name(name: str) -> str:
    """Return a flow run's name as the name of a folder: other characters than letters, digits and ``._-`` are ``-``."""
    valid = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:MAX_LENGTH]
    return valid if re.match(RUN_NAME_PATTERN, valid) else "run"


def free_name(name: str, flow_run_id: str, run_root: str | Path, *, is_retry: bool) -> str:
    """Return the name of a run whose request has none.

    Args:
        name: Name of the flow run.
        flow_run_id: Id of the flow run; its start is appended to a name that another run has.
        run_root: Folder that holds the runs' folders.
        is_retry: Whether an earlier attempt of the flow run has chosen its name already.
    """
    valid = as_run_name(name)
    is_taken = not is_retry and (Path(run_root) / valid).exists()
    return f"{valid}-{flow_run_id[:8]}" if is_taken else valid


async def show_run_name(run_id: str) -> None:
    """Rename the current flow run if it has another name than its run. A run continues if the server is unavailable."""
    from prefect import get_client
    from prefect.logging import get_run_logger
    from prefect.runtime import flow_run

    if flow_run.id is None or flow_run.name == run_id:
        return
    try:
        async with get_client() as client:
            await client.set_flow_run_name(flow_run.id, run_id)
    except Exception as error:
        if not is_unavailable(error):
            raise
        get_run_logger().warning("the flow run %s keeps its name, not %s: %s", flow_run.name, run_id, error)
