"""A Ray cluster of several machines: one node on each, with its own address and its own folder."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import psutil
from network import Machine, Network
from slow_link import Quality
from support_path import SUPPORT_PATH

from embodyflow.orchestration.server.settings import NO_TELEMETRY
from embodyflow.stack.processes import start_process

PORT = 6379
START_SECONDS = 240.0
SPREAD = {"RAY_scheduler_spread_threshold": "0.0"}
"""Settings of a cluster that places each worker on the node with most room. By default Ray first fills one by half."""
TWO_OF_EACH = ("rollout.num_workers=2", "trainer.num_ranks=2", "iterations=4")
"""Words of a run that two nodes can share."""

_NODES = """
import json, sys
from ray._raylet import GcsClient
nodes = GcsClient(address=sys.argv[1]).get_all_node_info().values()
print(json.dumps({each.node_manager_address: each.node_id.hex() for each in nodes if each.state == 0}))
"""


@dataclass
class RayNode:
    """A node of the cluster.

    Attributes:
        machine: Machine that it runs on.
        folder: Folder of its sockets and logs.
        process: The command ``ray start --block``.
    """

    machine: Machine
    folder: str = field(default_factory=lambda: tempfile.mkdtemp(prefix="ef-ray-"))  # longer paths break its sockets
    process: psutil.Process | None = None


class RayMachines:
    """A cluster whose nodes ask for a secret, as on a network that others share.

    Args:
        folder: Folder for logs.
        network: Network of the machines.
        of_head: Further environment variables of the head.
        settings: Further environment variables of all nodes.

    Attributes:
        nodes: Nodes so far, the head first.
    """

    def __init__(self, folder: Path, network: Network, of_head: Mapping[str, str], **settings: str) -> None:
        self._folder, self._network, self._of_head = folder, network, of_head
        (folder / "token").write_text("0123456789abcdef" * 4)
        secret = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(folder / "token")}
        self._env = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
        self._env |= NO_TELEMETRY | secret | settings | {"PYTHONPATH": SUPPORT_PATH}
        self._secret = secret
        self.nodes: list[RayNode] = []

    @property
    def address(self) -> str:
        """Address of the head."""
        return f"{self.nodes[0].machine.address}:{PORT}"

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that connect a run to the cluster."""
        return self._secret | {"RAY_ADDRESS": self.address, "PYTHONPATH": SUPPORT_PATH}

    def add(self, num_cpus: int, quality: Quality | None = None) -> RayNode:
        """Start a node on a further machine, the first as the head; return when it is up.

        Args:
            num_cpus: CPUs of the node.
            quality: Quality of the machine's link, which is perfect by default.
        """
        node = RayNode(self._network.add_machine(quality))
        self.nodes.append(node)
        self._start(node, num_cpus)
        return node

    def replace(self, index: int, num_cpus: int) -> None:
        """Put another machine with the same address in the place of a node's, and start a node on it."""
        lost = self.nodes[index]
        self.nodes[index] = RayNode(self._network.replace(lost.machine))
        shutil.rmtree(lost.folder, ignore_errors=True)
        self._start(self.nodes[index], num_cpus)

    def _start(self, node: RayNode, num_cpus: int) -> None:
        address, env = node.machine.address, self._env | self._of_head
        role = [
            "--head",
            f"--port={PORT}",
            "--include-dashboard=false",
            "--no-monitor",
            "--ray-client-server-port=10001",
        ]
        if node is not self.nodes[0]:
            role, env = [f"--address={self.address}"], self._env
        words = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *role),
            *(f"--node-ip-address={address}", f"--num-cpus={num_cpus}", f"--temp-dir={node.folder}"),
            *("--disable-usage-stats", "--dashboard-agent-listen-port=0", "--metrics-export-port=0"),
        ]
        log = self._folder / f"ray-{address}.log"
        # With it, Ray takes other machines' processes, which it sees here, for a head that already runs.
        Path(node.folder, "ray_current_cluster").unlink(missing_ok=True)
        node.process = start_process(node.machine.command(*words), log=log, env=env, cwd=self._folder)
        deadline = time.monotonic() + START_SECONDS
        while "Ray runtime started" not in log.read_text():
            has_ended = node.process.status() == psutil.STATUS_ZOMBIE
            assert time.monotonic() < deadline and not has_ended, log.read_text()
            time.sleep(0.1)

    def node_ids(self) -> dict[str, str]:
        """Return the id of each live node, by address."""
        return dict(json.loads(self.on(self.nodes[0], sys.executable, "-c", _NODES, self.address).splitlines()[-1]))

    def parts(self, node: RayNode, run_folder: Path) -> set[str]:
        """Return the parts of a run that are on a node, such as ``trainer/0`` and ``driver``."""
        there = {process.pid for process in node.machine.processes()}
        pids = json.loads((run_folder / "processes.json").read_text())
        return {part for part, pid in pids.items() if pid in there}

    def drain(self, node: RayNode, seconds: int) -> None:
        """Announce that a node goes after so many seconds, as a cloud that takes a machine back."""
        words = (f"--address={self.address}", f"--node-id={self.node_ids()[node.machine.address]}")
        why = ("--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=the machine is taken back")
        deadline = f"--deadline-remaining-seconds={seconds}"
        self.on(self.nodes[0], sys.executable, "-m", "ray.scripts.scripts", "drain-node", *words, *why, deadline)

    def on(self, node: RayNode, *words: str) -> str:
        """Run a command on a node's machine; return its output."""
        done = subprocess.run(node.machine.command(*words), env=self._env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def remove(self) -> None:
        """Remove the nodes' machines and folders."""
        for node in self.nodes:
            self._network.remove_machine(node.machine)
            shutil.rmtree(node.folder, ignore_errors=True)


@contextmanager
def ray_machines(
    folder: Path,
    network: Network,
    cpus: Sequence[int],
    of_head: Mapping[str, str] = MappingProxyType({}),
    **settings: str,
) -> Iterator[RayMachines]:
    """Run a cluster with so many CPUs on each node, the head first; its machines are gone at the end."""
    cluster = RayMachines(folder, network, of_head, **settings)
    try:
        for num_cpus in cpus:
            cluster.add(num_cpus)
        yield cluster
    finally:
        cluster.remove()
