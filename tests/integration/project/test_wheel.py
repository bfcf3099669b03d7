"""A wheel of this tree in a fresh environment: ``embodyflow init`` makes a project that runs and leaves nothing behind.

The fresh environment borrows the other packages from the environment that runs the tests, through a ``.pth`` file: no
index is needed, and it is made in seconds. A ``.pth`` file adds one folder to the import path and does not read the
``.pth`` files in it, so the editable install of this tree, which is such a file, does not leak.
"""

import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from local_stack import all_gone

from embodyflow import __version__
from embodyflow.stack.prefect_api import stack_api
from embodyflow.stack.stack_folder import StackFolder, live_stack

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]

SMALL = """
# @package _global_
defaults: [mine]
experiment: small
iterations: 1
env: {max_steps: 40}
policy: {hidden_size: 32, num_layers: 1}
rollout: {num_workers: 1, envs_per_worker: 2, num_groups: 2, group_size: 2}
trainer: {epochs: 1, num_minibatches: 1}
warm_start: {num_demos: 2, steps: 10, batch_size: 4}
evaluation: {num_goals: 2, video: false}
tracking: {tensorboard: false}
"""

POINT = """
# @package _global_
defaults: [small]
experiment: point
env:
  id: my_points:PointReach-v0
  tasks: [reach the goal]
  max_steps: 20
  adapter: {success_info: is_success, expert: my_points:expert}
policy: {state_dim: null, action_dim: null}
"""

POINTS = '''
"""An environment of the project's own."""

import gymnasium as gym
import numpy as np


class PointReach(gym.Env):
    observation_space = gym.spaces.Box(-4.0, 4.0, (4,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._position, self._goal = np.zeros(2), self.np_random.uniform(-1.0, 1.0, 2)
        return self._observation(), {"is_success": False}

    def step(self, action):
        self._position = np.clip(self._position + 0.15 * action, -2.0, 2.0)
        success = bool(np.linalg.norm(self._goal - self._position) < 0.1)
        return self._observation(), 0.0, False, False, {"is_success": success}

    def _observation(self):
        return np.concatenate([self._position, self._goal - self._position]).astype(np.float32)


def expert(env, observation):
    return np.clip(observation[2:] / 0.15, -1.0, 1.0)


gym.register("PointReach-v0", PointReach)
'''

NODES = '''
"""A node function of the project's own, and a graph with it."""

from embodyflow.graph.building_blocks import add_policy_update
from embodyflow.types import NodeOutput
from pipelines import NodeRole, NodeType, Pipeline


def count(batch, config=None, **kwargs):
    return NodeOutput(batch, {"mine/num_rows": float(len(batch))})


def graph():
    pipeline = (
        Pipeline("mine", "GRPO that counts its rows")
        .add_node("rollout", func="tasks:generate", node_type=NodeType.MODEL_INFERENCE, node_role=NodeRole.ROLLOUT)
        .add_node("count", func="my_nodes:count", deps=["rollout"])
        .add_node("reward", func="tasks:compute_reward", deps=["count"], node_role=NodeRole.REWARD)
        .add_node("advantage", func="tasks:compute_advantage", deps=["reward"], node_role=NodeRole.ADVANTAGE)
    )
    return add_policy_update(pipeline, after="advantage").build()
'''

GRAPH = """
dag_id: mine
nodes:
  - {node_id: rollout, executable_ref: "tasks:generate", node_type: MODEL_INFERENCE, node_role: ROLLOUT}
  - {node_id: count, executable_ref: "my_nodes:count", node_type: COMPUTE, dependencies: [rollout]}
  - {node_id: reward, executable_ref: "tasks:compute_reward", node_type: COMPUTE, node_role: REWARD,
     dependencies: [count]}
  - {node_id: advantage, executable_ref: "tasks:compute_advantage", node_type: COMPUTE, node_role: ADVANTAGE,
     dependencies: [reward]}
  - {node_id: old_log_prob, executable_ref: "tasks:compute_old_log_prob", node_type: MODEL_TRAIN, node_role: ACTOR,
     only_forward_compute: true, dependencies: [advantage]}
  - {node_id: train_actor, executable_ref: "tasks:train_actor", node_type: MODEL_TRAIN, node_role: ACTOR,
     dependencies: [old_log_prob]}
"""


def blocks_of_the_readme(project: Path) -> list[str]:
    """Return the files that the project's README shows under *A flow of your own*."""
    section = (project / "README.md").read_text().partition("## A flow of your own")[2].partition("\n## ")[0]
    return re.findall(r"```(?:python|yaml)\n(.*?)```", section, re.DOTALL)


def add_flow(project: Path) -> None:
    """Add the flow of the README, with its algorithm and its deployment."""
    flow, algorithm, deployment = blocks_of_the_readme(project)
    (project / "flows" / "quick.py").write_text(flow)
    (project / "configs" / "algorithm").mkdir()
    (project / "configs" / "algorithm" / "quick.yaml").write_text(algorithm.replace("my_module", "my_nodes"))
    with (project / "deployments" / "prefect.yaml").open("a") as file:
        file.write(f"\n{deployment}")


class Installation:
    """An environment with the wheel, whose programs run in folders outside of this tree.

    Args:
        folder: Folder for the wheel, the environment and the home of its programs.
    """

    def __init__(self, folder: Path) -> None:
        build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
        subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
        [self.wheel] = folder.glob("*.whl")
        venv.create(folder / "venv", with_pip=False, symlinks=True)
        self.bin = folder / "venv" / "bin"
        self.packages = folder / "venv" / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
        borrowed = [path for path in sys.path if path.endswith("site-packages")]
        (self.packages / "borrowed.pth").write_text("\n".join(borrowed))
        install = ["install", "--no-deps", "--no-index", "--quiet", str(self.wheel)]
        python = ["--python", str(self.bin / "python")]
        subprocess.run([sys.executable, "-m", "pip", *python, *install], check=True)
        self.env = {**os.environ, "HOME": str(folder), "OMP_NUM_THREADS": "1"}
        for name in ("PYTHONPATH", "PREFECT_API_URL", "PREFECT_HOME", "RAY_ADDRESS"):
            self.env.pop(name, None)

    def run(self, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment in a folder."""
        program = [str(self.bin / command[0]), *command[1:]]
        return subprocess.run(program, cwd=cwd, env=self.env, capture_output=True, text=True, timeout=280)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return Installation(tmp_path_factory.mktemp("installed"))


@pytest.fixture
def project(installed: Installation, tmp_path: Path) -> Iterator[Path]:
    """A new project with an experiment and modules of its own."""
    assert installed.run("embodyflow", "init", "mine", cwd=tmp_path).returncode == 0
    folder = tmp_path / "mine"
    (folder / "configs" / "experiment" / "small.yaml").write_text(SMALL)
    (folder / "my_nodes.py").write_text(NODES)
    (folder / "my_points.py").write_text(POINTS)
    (folder / "my_graph.yaml").write_text(GRAPH)
    yield folder
    installed.run("embodyflow", "down", cwd=folder)


def test_the_wheel_has_one_import_root(installed: Installation, tmp_path: Path) -> None:
    roots = {name.partition("/")[0] for name in zipfile.ZipFile(installed.wheel).namelist()}
    assert roots == {"embodyflow", f"embodyflow-{__version__}.dist-info"}
    found = installed.run("python", "-c", "import embodyflow; print(embodyflow.__file__)", cwd=tmp_path)
    assert found.stdout.strip() == str(installed.packages / "embodyflow" / "__init__.py")
    for room in ("flows", "pipelines", "tasks", "envs", "deployments", "configs"):
        missing = installed.run("python", "-c", f"import {room}", cwd=tmp_path)
        assert f"No module named '{room}'" in missing.stderr
    assert installed.run("embodyflow", "--version", cwd=tmp_path).stdout == f"embodyflow {__version__}\n"


@pytest.mark.slow
@pytest.mark.timeout(900)  # it starts a stack and four runs
def test_a_project_runs_on_its_stack_and_without(installed: Installation, project: Path) -> None:
    """Flow runs, Ray workers and environment processes find the rooms and the modules of the project.

    What a user adds to the project after the start of the stack is found, too. A resumed run equals one that was never
    interrupted.
    """

    def run(*command: str) -> str:
        done = installed.run(*command, cwd=project)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("embodyflow", "up", "--detach")
    launcher = psutil.Process(json.loads((project / ".embodyflow" / "stack.json").read_text())["pid"])
    family = [launcher, *launcher.children(recursive=True)]
    run("embodyflow", "status")
    nightly = deployment(project, "grpo/embodied-nightly")
    assert [(each["active"], each["schedule"]["cron"]) for each in nightly["schedules"]] == [(True, "0 2 * * *")]
    assert not nightly["paused"] and nightly["parameters"] == {"experiment": "embodied"}

    parameters = {"experiment": "small", "run_id": "robot", "overrides": ["pipeline.yaml=my_graph.yaml"]}
    run("python", "-m", "prefect", "deployment", "run", "grpo/embodied", "--params", json.dumps(parameters), "--watch")

    add_flow(project)
    (project / "configs" / "experiment" / "point.yaml").write_text(POINT)
    run("embodyflow", "check-env", "experiment=point")
    out = run("embodyflow", "run", "--flow", "quick", "--experiment", "point", "run_id=resumed")
    assert out.splitlines()[-1] == "run_dir=runs/resumed"
    resumption = ["-p", "experiment=point", "-p", "resume=resumed", "-p", "iterations=2"]
    run("python", "-m", "prefect", "deployment", "run", "quick/mine", *resumption, "--watch")
    # On the stack's server, and on its own Ray.
    run("python", "-m", "flows.quick", "experiment=point", "iterations=2", "run_id=alone", "rollout.env_processes=1")

    assert num_rows(project, "robot") == [4.0]
    assert num_rows(project, "resumed") == num_rows(project, "alone") == [4.0, 4.0]
    assert weights(project, "resumed") == weights(project, "alone")

    run("embodyflow", "down")
    assert all_gone(family)


def deployment(project: Path, name: str) -> dict[str, Any]:
    """Return the server's record of a deployment."""
    folder = StackFolder(project)
    state = live_stack(folder)
    assert state is not None
    found = stack_api(folder, state).deployment(name)
    assert found is not None
    return found


def num_rows(project: Path, run: str) -> list[float]:
    """Return what the project's own node counted in each iteration of a run."""
    lines = (project / "runs" / run / "metrics.jsonl").read_text().splitlines()
    return [record["mine/num_rows"] for record in map(json.loads, lines) if "mine/num_rows" in record]


def weights(project: Path, run: str) -> str:
    """Return the digest of a run's weights."""
    digest: str = json.loads((project / "runs" / run / "summary.json").read_text())["weights_digest"]
    return digest


def test_an_old_project_is_brought_to_the_installed_version(installed: Installation, project: Path) -> None:
    record = project / "embodyflow.toml"
    record.write_text(record.read_text().replace(__version__, "0.0.1"))
    note = f"note: the rooms of this project come from embodyflow 0.0.1, and {__version__} is installed; "
    assert note in installed.run("embodyflow", "status", cwd=project).stderr
    (project / "README.md").write_text("mine")
    assert installed.run("embodyflow", "init", "--upgrade", cwd=project).returncode == 0
    assert installed.run("embodyflow", "status", cwd=project).stderr == ""
    assert (project / "README.md").read_text() == "mine"


@pytest.mark.parametrize(
    ("room", "name", "command"),
    [
        ("tasks", "generate", ["embodyflow", "run"]),
        ("envs", "embodyflow/MetaWorld-v0", ["python", "-m", "flows.grpo"]),
    ],
)
def test_a_module_that_hides_a_room_is_refused_before_anything_starts(
    installed: Installation, project: Path, room: str, name: str, command: list[str]
) -> None:
    (project / room).rename(project / "aside")
    (project / f"{room}.py").touch()
    refused = installed.run(*command, cwd=project)
    assert refused.returncode == 2
    (line,) = refused.stderr.splitlines()
    assert line.startswith(f"{room}:{name}: {project}/{room}.py does not define it; rename that module if it hides")
    assert not (project / "runs").exists() and not (project / ".embodyflow").exists()


@pytest.mark.parametrize("command", ["run", "plan"])
def test_outside_of_a_project_a_command_says_so(installed: Installation, tmp_path: Path, command: str) -> None:
    refused = installed.run("embodyflow", command, cwd=tmp_path)
    assert refused.returncode == 2
    (line,) = refused.stderr.splitlines()
    assert "run this in a project's folder, or make one with `embodyflow init <folder>`" in line
