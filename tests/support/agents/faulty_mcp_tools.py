"""Tools of :mod:`faulty_mcp_server` and their processes, for tests."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from waiting import eventually

SCRIPT = str(Path(__file__).with_name("faulty_mcp_server.py"))


def stdio_tools(faults: Path, *tools: str, **limits: Any) -> dict[str, Any]:
    """Return the configuration of tools whose server is a process of the rollout worker."""
    command = [sys.executable, "-S", SCRIPT, "stdio", *tools]
    return {"mcp": {"command": command, "env": {"FAULTS": str(faults)}}, **limits}


def http_tools(port: int, **limits: Any) -> dict[str, Any]:
    """Return the configuration of the tools of a server over HTTP."""
    return {"mcp": {"url": f"http://127.0.0.1:{port}/mcp"}, **limits}


def start_server(faults: Path, port: int, *tools: str) -> subprocess.Popen[bytes]:
    """Start a server over HTTP and wait until it listens."""
    command = [sys.executable, "-S", SCRIPT, str(port), *tools]
    process = subprocess.Popen(command, env={"FAULTS": str(faults)}, stderr=subprocess.DEVNULL)
    assert eventually(lambda: _listens(port), 60)
    return process


@contextmanager
def http_server(faults: Path, port: int, *tools: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server over HTTP within the block."""
    process = start_server(faults, port, *tools)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def plan(faults: Path, place: str) -> None:
    """Give the next call of a place the fault of the tool that is called."""
    (faults / place.replace("/", "-")).touch()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
