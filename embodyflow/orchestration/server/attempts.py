"""One process at a time for the flow run of a deployment.

A cluster that loses sight of a pod starts another one for the same flow run, while the first may still train. The
second must neither train beside it nor end the flow run with an error.
"""

import asyncio
import atexit
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from prefect import get_client, runtime
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.states import Cancelled

from embodyflow.errors import ConfigError
from embodyflow.process.files.file_lock import try_lock

FOLDER = ".attempts"
"""Folder beside the runs, with a lock file for each flow run of a deployment that a process executes."""

_WAIT_SECONDS = 1.0
_held: dict[Path, IO[str]] = {}


async def only_attempt(find_run_root: Callable[[], str]) -> State[Any] | None:
    """Wait until no other process executes the current flow run; later ones then wait until this process ends.

    This process reports the end of the flow run before it ends itself. A flow run without a deployment has only one
    process, so nothing is locked.

    Args:
        find_run_root: Function that returns the folder of the runs, which all processes of the flow run share.

    Returns:
        ``None`` if there is work to do, else the final state of the flow run, which another process has ended.

    Raises:
        ConfigError: The folder cannot be written.
    """
    if runtime.deployment.id is None:
        return None
    run_root = find_run_root()
    path = Path(run_root).absolute() / FOLDER / f"{runtime.flow_run.id}.lock"
    if path in _held:
        return None
    has_waited = False
    while (lock := _try(path, run_root)) is None:
        if not has_waited:
            get_run_logger().warning("another process executes this flow run; this one waits for its end")
        has_waited = True
        await asyncio.sleep(_WAIT_SECONDS)
    _held[path] = lock
    atexit.register(path.unlink, missing_ok=True)
    return await _final_state() if has_waited else None


def _try(path: Path, run_root: str) -> IO[str] | None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return try_lock(path)
    except OSError as error:
        raise ConfigError(f"run_root={run_root}: {path.parent} cannot be written: {error.strerror}") from error


async def _final_state() -> State[Any] | None:
    async with get_client() as client:
        state = (await client.read_flow_run(runtime.flow_run.id)).state
    if state is None or not (state.is_final() or state.is_cancelling()):
        return None
    return state if state.is_final() else Cancelled()
