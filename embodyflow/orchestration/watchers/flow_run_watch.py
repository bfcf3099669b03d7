"""The watcher of a flow run: it closes the run on the server if this process ends without a report."""

import os
import subprocess
from pathlib import Path

from prefect.context import FlowRunContext
from prefect.settings import get_current_settings

import embodyflow
from embodyflow.orchestration.server.credentials import credentials_in
from embodyflow.orchestration.watchers.flow_run_closing import WatchedFlowRun
from embodyflow.orchestration.watchers.orphans import tell_flow_watcher
from embodyflow.orchestration.watchers.pipe import send, start_on_pipe

_KEPT = ("PATH", "HOME", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
"""Variables of the watcher. It has no mark of a stack, so that it outlives the processes that a killed stack leaves."""

_watchers: list["subprocess.Popen[bytes]"] = []
"""Watchers of this process. Their pipes close when the process ends."""


def watch_flow_run() -> None:
    """Let a watcher close the current flow run if this process ends without a report, even by SIGKILL.

    A flow that runs from the command line has a watcher already; a flow that a Prefect worker runs gets one. Call it
    first in the flow's function.
    """
    context, settings = FlowRunContext.get(), get_current_settings().api
    if context is None or context.flow_run is None or not settings.url:
        return  # Prefect's own temporary server serves only this process
    flow_run = context.flow_run
    line = WatchedFlowRun(
        api_url=settings.url.rstrip("/"),
        headers=credentials_in(settings).headers(),
        id=str(flow_run.id),
        run_count=flow_run.run_count,
        has_worker=flow_run.deployment_id is not None,
    ).line()
    if not tell_flow_watcher(line):
        _start_watcher(line)


def _start_watcher(line: str) -> None:
    env = {name: os.environ[name] for name in _KEPT if name in os.environ}
    env["PYTHONPATH"] = str(Path(embodyflow.__file__).parents[1])
    watcher = start_on_pipe("embodyflow.orchestration.watchers.flow_run_closing", env=env, cwd="/")
    send(watcher, line)
    _watchers.append(watcher)
