"""A run without a stack opens no door: its Ray cluster is for this user and this machine."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration

# Starts a run's cluster with a worker, then prints who listens where, who may enter, and what a stranger gets.
SCRIPT = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
from types import SimpleNamespace
import psutil, ray
from embodyflow.orchestration.run.cluster import ray_cluster

@ray.remote
def work():
    return os.getpid()

STRANGER = "import ray, sys; ray.init(sys.argv[1], log_to_driver=False)"
def secrets():
    return {name for name in os.environ if name.startswith(("RAY_AUTH", "RAY_ENABLE"))}

before = secrets()
config = SimpleNamespace(run_id="private", cluster=SimpleNamespace(gpus_per_worker=0.0), largest_groups={})
with ray_cluster(config):
    ray.get(work.remote())
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    found = [(each.name(), one.laddr.ip) for each in processes for one in each.net_connections("inet")
             if one.status == psutil.CONN_LISTEN]
    folder = Path(ray._private.worker._global_node.get_temp_dir_path()).parent
    mode = folder.stat().st_mode & 0o777
    sockets = max(len(os.fsencode(path)) for path in folder.rglob("sockets/*"))
    command = [sys.executable, "-c", STRANGER, ray.get_runtime_context().gcs_address]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    stranger = subprocess.run(command, env=environment, capture_output=True, text=True)
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    except SystemExit:
        time.sleep(4)  # an orderly stop, longer than the three seconds of Ray's handler in C++
print(json.dumps({"listening": found, "mode": mode, "left": folder.exists(), "sockets": sockets,
                  "code": stranger.returncode, "error": stranger.stderr, "restored": before == secrets()}))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the script found, which SIGTERM stops at its end."""
    home = tmp_path_factory.mktemp("home")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"HOME": str(home), "PYTHONPATH": str(Path(__file__).parents[3]), "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout.splitlines()[-1]), "home": [path.name for path in home.rglob("auth_token")]}


def test_everything_listens_on_the_loopback_interface(found: dict[str, Any]) -> None:
    assert {"gcs_server", "raylet"} <= {name for name, _ in found["listening"]}
    assert {address.removeprefix("::ffff:") for _, address in found["listening"]} == {"127.0.0.1"}


def test_its_files_are_in_a_private_folder_that_goes_with_it(found: dict[str, Any]) -> None:
    assert (found["mode"], found["left"]) == (0o700, False)
    assert found["sockets"] <= 107


def test_a_user_without_its_secret_cannot_connect(found: dict[str, Any]) -> None:
    assert found["code"] != 0 and "AuthenticationError" in found["error"]
    assert found["restored"] and found["home"] == []  # the secret is in no file and does not outlive the cluster
