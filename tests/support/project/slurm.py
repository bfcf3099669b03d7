"""A Slurm cluster of two nodes on this machine, by Debian's packages slurmctld, slurmd and slurm-client."""

import getpass
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from server_ports import server_port
from waiting import eventually

from embodyflow.stack.processes import start_process, stop_processes

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")

# No accounting, no cgroups and no authentication: all of it ends with the test.
CONFIGURATION = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=20
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NODE = "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=4 State=UNKNOWN"
NODES = ("n1", "n2")


class Slurm:
    """A cluster that is up.

    Args:
        folder: Folder of its configuration, state and logs.
    """

    def __init__(self, folder: Path) -> None:
        self.env = {"SLURM_CONF": str(folder / "slurm.conf")}

    def run(self, *command: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
        """Run one of Slurm's commands; return its output."""
        done = subprocess.run(
            command, env={**(env or os.environ), **self.env}, cwd=cwd, text=True, capture_output=True, timeout=60
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def job(self, number: str) -> dict[str, str]:
        """Return what Slurm knows of a job, by name, such as ``JobState`` and ``Restarts``."""
        words = self.run("scontrol", "--oneliner", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def start_soon(self, number: str) -> None:
        """Let a requeued job start in seconds; Slurm keeps it back for two minutes, and its nodes refuse it at once."""
        self.run("scontrol", "update", f"JobId={number}", "StartTime=now+5seconds")


@contextmanager
def slurm(folder: Path) -> Iterator[Slurm]:
    """Run a cluster."""
    nodes = "\n".join(NODE.format(name=name, port=server_port()) for name in NODES)
    text = CONFIGURATION.format(port=server_port(), user=getpass.getuser(), folder=folder, nodes=nodes)
    (folder / "state").mkdir()
    (folder / "slurm.conf").write_text(text)
    cluster = Slurm(folder)
    processes: list[psutil.Popen] = []
    try:
        for command in (["slurmctld", "-D"], *(["slurmd", "-D", "-N", name] for name in NODES)):
            processes.append(_start(command, cluster, folder))
        deadline = time.monotonic() + 60
        while cluster.run("sinfo", "--noheader", "--format=%D %T") != f"{len(NODES)} idle":
            assert time.monotonic() < deadline, (folder / "slurmctld.log").read_text()[-2000:]
            time.sleep(0.5)
        try:
            yield cluster
        finally:  # a job that a failed test left would outlive the daemons
            cluster.run("scancel", "--user", getpass.getuser())
            eventually(lambda: not cluster.run("squeue", "--noheader"), 60.0)
    finally:
        stop_processes(reversed(processes), grace=30)


def _start(command: list[str], cluster: Slurm, folder: Path) -> psutil.Popen:
    program = shutil.which(command[0], path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    assert program is not None
    env = {**os.environ, **cluster.env}
    return start_process([program, *command[1:]], log=folder / f"{command[-1]}.out", env=env, cwd=folder)


def is_installed() -> bool:
    """Return True if all of Slurm's programs are on this machine."""
    return all(shutil.which(each, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") for each in PROGRAMS)
