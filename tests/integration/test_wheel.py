"""A wheel of this tree in a fresh environment: ``embodyflow init`` makes a project that runs and leaves nothing behind.

The fresh environment borrows the other packages from the environment that runs the tests, through a ``.pth`` file: no
index is needed, and it is made in seconds. A ``.pth`` file adds one folder to the import path and does not read the
``.pth`` files in it, so the editable install of this tree, which is such a file, does not leak.
"""

import json
import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from local_stack import all_gone

from embodyflow import __version__

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]

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
    """A new project with an experiment and a node of its own."""
    assert installed.run("embodyflow", "init", "mine", cwd=tmp_path).returncode == 0
    folder = tmp_path / "mine"
    (folder / "configs" / "experiment" / "small.yaml").write_text(SMALL)
    (folder / "my_nodes.py").write_text(NODES)
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


@pytest.mark.timeout(600)  # it starts a stack and two runs
def test_a_project_runs_on_its_stack_and_without(installed: Installation, project: Path) -> None:
    """Flow runs, Ray workers and environment processes find the rooms and the modules of the project."""
    up = installed.run("embodyflow", "up", "--detach", cwd=project)
    assert up.returncode == 0, up.stderr
    launcher = psutil.Process(json.loads((project / ".embodyflow" / "stack.json").read_text())["pid"])
    family = [launcher, *launcher.children(recursive=True)]
    assert installed.run("embodyflow", "status", cwd=project).returncode == 0

    graph = "pipeline.custom_fn=my_nodes:graph"
    run = installed.run("embodyflow", "run", "--experiment", "small", "run_id=watched", graph, cwd=project)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "run_dir=runs/watched"
    words = ["experiment=small", "run_id=alone", "rollout.env_processes=1", graph]
    alone = installed.run("python", "-m", "flows.grpo", *words, cwd=project)  # on the stack's server, on its own Ray
    assert alone.returncode == 0, alone.stderr
    digests = []
    for folder in (project / "runs" / "watched", project / "runs" / "alone"):
        records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert [each["mine/num_rows"] for each in records if "mine/num_rows" in each] == [4.0]
        digests.append(json.loads((folder / "summary.json").read_text())["weights_digest"])
    assert digests[0] == digests[1]

    assert installed.run("embodyflow", "down", cwd=project).returncode == 0
    assert all_gone(family)


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
