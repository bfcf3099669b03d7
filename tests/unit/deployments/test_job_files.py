"""The jobs for Slurm and SkyPilot; tests/integration/project/test_slurm.py submits the real one."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from deployment_files import DEPLOYMENTS, ROOT, check_command, commands_in, unknown_settings
from pydantic import BaseModel, ConfigDict

from embodyflow.orchestration.request.request import check, parse_arguments

SLURM = DEPLOYMENTS / "slurm"
SBATCH = (SLURM / "train.sbatch").read_text()
SCRIPTS = [SLURM / "train.sbatch", SLURM / "ray_node.sh", SLURM / "node_address.sh", DEPLOYMENTS / "secrets.sh"]


class SkyTask(BaseModel):
    """The fields of a SkyPilot task that we use."""

    model_config = ConfigDict(extra="forbid")

    name: str
    num_nodes: int
    resources: dict[str, Any]
    volumes: dict[str, str]
    workdir: str
    envs: dict[str, str | None]
    secrets: dict[str, None]
    setup: str
    run: str


TASK = SkyTask.model_validate(yaml.safe_load((DEPLOYMENTS / "skypilot" / "train.yaml").read_text()))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_valid(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", "--shell=bash", "--severity=warning", script], check=True)


def test_a_job_is_requeued_and_told_before_its_time_limit() -> None:
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=?(\S*)$", SBATCH, re.MULTILINE))
    assert options["requeue"] == "" and options["open-mode"] == "append"
    assert options["signal"] == "B:TERM@120", "the batch shell alone, early enough for the run and Ray to stop"
    assert options["ntasks-per-node"] == "1", "one Ray node on each machine"


def test_commands_and_settings_of_the_slurm_job_exist() -> None:
    node = (SLURM / "ray_node.sh").read_text()
    [start] = re.findall(r"^ *ray start (.*?) &$", node, re.MULTILINE | re.DOTALL)
    roles = re.findall(r"role=\((.*)\)", node)
    assert len(roles) == 2
    for role in roles:
        words = start.replace('"${role[@]}"', role).replace("\\\n", " ")
        check_command(["ray", "start", *(re.sub(r'"?\$\{?[^"\s]+"?', "1", word) for word in words.split())])
    names = re.findall(r"(PREFECT_\w+|RAY_AUTH_\w+|RAY_ADDRESS)=", SBATCH)
    assert names and not unknown_settings(names)
    for path in re.findall(r"deployments/slurm/\w+\.\w+", SBATCH + node + TASK.run):
        assert (ROOT / path).is_file(), path


def test_the_example_of_the_slurm_job_is_a_run(tmp_path: Path) -> None:
    [words] = re.findall(r"train\.sbatch grpo (.*)", SBATCH)
    assert check(parse_arguments([f"run_root={tmp_path}", *words.split()], "grpo")).rollout.num_workers == 16


@pytest.mark.parametrize(
    ("signalled", "state", "code", "requeued"),
    [
        (True, "RUNNING", 130, True),
        (True, "RUNNING", 0, False),  # the run ended in time
        (True, "COMPLETING", 130, False),  # cancelled by the user, or requeued by Slurm
        (False, "RUNNING", 1, False),  # a mistake of the user
    ],
)
def test_a_job_requeues_itself_if_only_a_signal_ended_its_run(
    tmp_path: Path, signalled: bool, state: str, code: int, requeued: bool
) -> None:
    """Stand-ins for Slurm's programs and for the run; the template's steps are the real ones."""
    wait = f"trap 'exit {code}' INT; kill -TERM $PPID; sleep 5 & wait;" if signalled else ""
    programs = {
        "scontrol": 'echo "$@" >>calls; echo "NodeAddr=127.0.0.1"',
        "scancel": 'echo "scancel $@" >>calls; kill $(cat srun.pid)',
        "squeue": f"[[ -e asked ]] || {{ touch asked; exit 1; }}; echo {state}",  # the controller is busy at first
        "srun": "echo $$ >srun.pid; exec sleep 60",
        "python": f"""case "$*" in
            *secrets*) echo secret 1 2;;
            *flows*) echo "$@" >run; {wait} exit {code};;
            esac""",
    }
    for name, text in programs.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)
    (tmp_path / "deployments").symlink_to(DEPLOYMENTS)
    slurm = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", "SLURM_NNODES": "2", "SLURM_CPUS_PER_TASK": "1"}
    env = {**os.environ, **slurm, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    command = ["bash", SLURM / "train.sbatch", "grpo", "experiment=embodied", "run_id=mine"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    run = (tmp_path / "run").read_text().split()
    assert run == ["-m", "flows.grpo", "run_id=slurm-7", "experiment=embodied", "run_id=mine", "if_exists=resume"]
    calls = (tmp_path / "calls").read_text().splitlines()
    assert "scancel --signal=TERM 7.0" in calls
    assert ("requeue 7" in calls) == requeued


@pytest.mark.parametrize("path", [DEPLOYMENTS / "skypilot" / "train.yaml", ROOT / "docs/how-to/run-on-a-cluster.md"])
def test_no_command_has_a_secret_among_its_words(path: Path) -> None:
    """Other users of the machine can read them."""
    assert re.findall(r"--secret \S+", path.read_text()) == ["--secret RAY_AUTH_TOKEN"]


def test_the_skypilot_task_starts_and_continues_the_same_run() -> None:
    assert TASK.envs["RUN_ID"] is None and TASK.secrets == {"RAY_AUTH_TOKEN": None}, "to be given for each launch"
    run = 'python -m "flows.$FLOW" $WORDS run_root=/runs run_id="$RUN_ID" if_exists=resume'
    assert run in TASK.run and "/runs" in TASK.volumes
    subprocess.run(["bash", "-n"], input=TASK.run, text=True, check=True)
    for words in commands_in(TASK.run):
        check_command(words)
    words = str(TASK.envs["WORDS"]).split()
    request = parse_arguments(words, TASK.envs["FLOW"])
    assert request.hydra_overrides()[0] == "experiment=gsm8k"
    assert TASK.setup.startswith("make install EXTRAS=")
