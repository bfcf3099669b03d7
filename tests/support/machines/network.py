"""Machines with an address and a loopback interface of their own: network namespaces of this machine, on one network.

They share this machine's files and processors. A bridge connects them, and this machine with its first address.
"""

import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from slow_link import Quality, SlowLink

NAMESPACES = Path("/run/netns")


def missing() -> str:
    """Return why this machine cannot have namespaces, or an empty string."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need the command ip of iproute2"
    name = f"ef{os.getpid()}probe"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode != 0:
        return f"no network namespaces here: {made.stderr.strip()}"
    configure("netns", "delete", name)
    return ""


class Machine:
    """One namespace.

    Args:
        name: Name of the namespace.
        address: Its address on the network.

    Attributes:
        link: What connects it to the others, if that is slow.
    """

    def __init__(self, name: str, address: str) -> None:
        self.name, self.address = name, address
        self.link: SlowLink | None = None

    def command(self, *words: str) -> list[str]:
        """Return the words that run a command on the machine."""
        return ["ip", "netns", "exec", self.name, *words]

    def processes(self) -> list[psutil.Process]:
        """Return the processes on the machine."""
        return _processes(self.name)

    def lose_power(self) -> None:
        """Cut the machine off without closing its connections, and kill its processes."""
        configure("-netns", self.name, "link", "set", "eth", "down")
        _end(self.name)


class Network:
    """The machines and the bridge between them.

    Attributes:
        address: This machine's address on the network.
    """

    def __init__(self) -> None:
        self._mark, pid = f"ef{os.getpid()}", os.getpid()
        # Processes that test at the same time have networks of their own.
        self._subnet = f"10.{128 + (pid >> 8) % 64}.{pid % 256}"
        self._numbers = itertools.count(2)
        self._machines: list[Machine] = []
        self.address = f"{self._subnet}.1"

    def add_machine(self, quality: Quality | None = None) -> Machine:
        """Connect another machine, by a link of some quality instead of a perfect one."""
        return self._add(next(self._numbers), quality)

    def replace(self, machine: Machine) -> Machine:
        """Kill all processes on a machine, and connect another one that has its address."""
        self.remove_machine(machine)
        return self._add(int(machine.name.rpartition("-")[2]), None)

    def _add(self, number: int, quality: Quality | None) -> Machine:
        machine = Machine(f"{self._mark}-{number}", f"{self._subnet}.{number}")
        configure("netns", "add", machine.name)
        self._machines.append(machine)
        configure("-netns", machine.name, "link", "set", "lo", "up")
        self._connect(machine, number, quality)
        # It leads nowhere. Ray finds a machine's address by its route to the internet.
        configure("-netns", machine.name, "route", "add", "default", "dev", "eth")
        return machine

    def remove_machine(self, machine: Machine) -> None:
        """Kill all processes on a machine and remove it."""
        self._machines.remove(machine)
        if machine.link:
            machine.link.close()
        else:  # its end here would stay for a moment after the namespace
            configure("link", "delete", self._card(machine))
        _remove_namespace(machine.name)

    def _card(self, machine: Machine) -> str:
        """Return the name of the end of a machine's link at the bridge."""
        return machine.name.replace("-", "v")

    def _connect(self, machine: Machine, number: int, quality: Quality | None) -> None:
        near = self._card(machine)
        if quality is None:
            configure("link", "add", near, "type", "veth", "peer", "name", "eth", "netns", machine.name)
        else:
            far = f"{self._mark}w{number}"
            machine.link = SlowLink((near, far), quality)
            configure("link", "set", far, "netns", machine.name, "name", "eth")
        configure("link", "set", near, "master", self._mark, "up")
        configure("-netns", machine.name, "address", "add", f"{machine.address}/24", "dev", "eth")
        configure("-netns", machine.name, "link", "set", "eth", "up")

    def open(self) -> None:
        """Create the bridge."""
        configure("link", "add", self._mark, "type", "bridge")
        configure("address", "add", f"{self.address}/24", "dev", self._mark)
        configure("link", "set", self._mark, "up")

    def close(self) -> None:
        """Kill all processes on the machines, and remove machines and bridge."""
        for machine in [*self._machines]:
            self.remove_machine(machine)
        _remove(self._mark)


@contextmanager
def network() -> Iterator[Network]:
    """Yield an empty network; nothing of it is left at the end."""
    remove_abandoned()
    made = Network()
    try:
        made.open()
        yield made
    finally:
        made.close()


def remove_abandoned() -> None:
    """Remove the networks of processes that were killed."""
    links = [each.name for each in Path("/sys/class/net").glob("ef*")]
    names = [*links, *(each.name.partition("-")[0] for each in NAMESPACES.glob("ef*-*"))]
    for mark in {name for name in names if name.startswith("ef") and name[2:].isdigit()}:
        if not psutil.pid_exists(int(mark[2:])):
            _remove(mark)


def _remove(mark: str) -> None:
    for namespace in NAMESPACES.glob(f"{mark}-*"):
        _remove_namespace(namespace.name)
    if Path("/sys/class/net", mark).exists():
        configure("link", "delete", mark)


def _remove_namespace(name: str) -> None:
    _end(name)
    configure("netns", "delete", name)


def _processes(namespace: str) -> list[psutil.Process]:
    found = []
    for pid in map(int, configure("netns", "pids", namespace).split()):
        with suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return found


def _end(namespace: str) -> None:
    """Kill all processes in a namespace, also those that start meanwhile."""
    deadline = time.monotonic() + 20.0
    while left := _processes(namespace):
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        psutil.wait_procs(left, timeout=1.0)
        assert time.monotonic() < deadline, [process.cmdline() for process in left]


def configure(*words: str) -> str:
    """Run ``ip`` with these words; return its output."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
    return done.stdout
