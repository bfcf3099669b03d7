"""A Ray cluster that the runs of several tests share; starting one per run costs each of them seconds."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from embodyflow.process.ports import answers, free_port
from embodyflow.stack.processes import start_process, stop_processes
from embodyflow.stack.services import NO_TELEMETRY, ray_command, ray_environment
from embodyflow.stack.stack_folder import StackFolder

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def ray_head(folder: Path, *, prefix: Sequence[str] = (), **settings: str) -> Iterator[dict[str, str]]:
    """Run a head node; yield the environment variables that connect a run to it.

    Args:
        folder: Folder for its log and its secret.
        prefix: Beginning of the command that starts it.
        settings: Further environment variables of the cluster.
    """
    sockets = tempfile.mkdtemp(prefix="ef-ray-")  # a longer path breaks Ray's sockets
    port = free_port(0)
    address, secret = f"127.0.0.1:{port}", ray_environment(StackFolder(folder))
    env = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"} | NO_TELEMETRY | secret | settings
    env["PYTHONPATH"] = f"{ROOT}:{Path(__file__).parent}"  # workers have the environment of their cluster
    command = [*prefix, *ray_command(port, free_port(0), sockets)]
    head = start_process(command, log=folder / "ray.log", env=env, cwd=folder)
    try:
        deadline = time.monotonic() + 120
        # The head's address answers before the node has started.
        while not (answers(address) and "Ray runtime started" in (folder / "ray.log").read_text()):
            assert time.monotonic() < deadline and head.is_running(), (folder / "ray.log").read_text()
            time.sleep(0.1)
        yield secret | {"RAY_ADDRESS": address}
    finally:
        stop_processes([head, *head.children(recursive=True)], grace=10)
        shutil.rmtree(sockets, ignore_errors=True)
