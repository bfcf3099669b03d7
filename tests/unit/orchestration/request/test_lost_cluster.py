"""A run whose Ray cluster is lost ends although Ray waits for it, and says what to do."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
import ray

from embodyflow.config import RunConfig
from embodyflow.errors import ClusterLostError
from embodyflow.orchestration.run import cluster

LINE = "the head of the Ray cluster is gone; start Ray, then resume=mine"
SCRIPT = f"""
import atexit, sys
from embodyflow.errors import ClusterLostError
from embodyflow.orchestration.request import command_line
from flows.grpo import grpo

class Crash:
    def __del__(self):
        sys.__stderr__.write("a destructor")

def lose(*_, **__):
    raise ClusterLostError({LINE!r})

held = Crash()
command_line.run_flow = lose
atexit.register(print, "an exit handler")
command_line.main(grpo)
"""


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let something listen at ``RAY_ADDRESS``, and connect to it without Ray."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{listener.getsockname()[1]}")
        monkeypatch.setattr(cluster, "_init", lambda options: None)
        monkeypatch.setattr(cluster, "_DISCONNECT_SECONDS", 0.05)
        yield


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("connected")
def test_nothing_waits_for_a_connection_to_a_lost_cluster_that_does_not_close(
    tiny_config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = threading.Event()
    monkeypatch.setattr(ray, "shutdown", answer.wait)
    with pytest.raises(ClusterLostError, match="gone"), cluster.ray_cluster(tiny_config()):
        raise ClusterLostError("gone")
    [closing] = [each for each in threading.enumerate() if each.name == "ray-shutdown"]
    answer.set()
    closing.join()


@pytest.mark.usefixtures("connected")
def test_other_connections_are_closed_before_the_run_ends(
    tiny_config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed_in = list[threading.Thread]()
    monkeypatch.setattr(ray, "shutdown", lambda: closed_in.append(threading.current_thread()))
    with pytest.raises(ValueError, match="a bug"), cluster.ray_cluster(tiny_config()):
        raise ValueError("a bug")
    with cluster.ray_cluster(tiny_config()):
        assert len(closed_in) == 1
    assert closed_in == [threading.main_thread()] * 2


def test_the_command_says_what_to_do_and_exits_without_destructors(tmp_path: os.PathLike[str]) -> None:
    words = [sys.executable, "-c", SCRIPT, f"run_root={tmp_path}", "iterations=1"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (1, "an exit handler\n", f"{LINE}\n")
