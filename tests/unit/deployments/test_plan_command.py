"""``embodyflow plan`` answers without a cluster."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deployments.cli import main

ROOT = Path(__file__).resolve().parents[3]

BRANCHES = """
dag_id: branches
nodes:
  - {node_id: rollout, executable_ref: "tasks:generate", node_type: model_inference, node_role: rollout}
  - {node_id: left, executable_ref: "tasks:train_actor", node_type: model_train, node_role: actor,
     dependencies: [rollout], reads: []}
  - {node_id: right, executable_ref: "tasks:compute_ref_log_prob", node_type: model_train, node_role: reference,
     dependencies: [rollout], reads: []}
"""


def test_a_plan_is_a_table_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "plan.mmd"
    words = ["--flow", "ppo", "--nodes", "2", "--gpus", "4", "--placement", "disaggregated", "--model", "7B"]
    assert main(["plan", *words, "--picture", str(picture)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    ranks = {line[0]: line[4] for line in lines if len(line) == 6 and line[1] in ("COMPUTE", "MODEL_TRAIN")}
    assert ranks["reward"] == "0-3" and ranks["train_actor"] == ranks["train_critic"] == "4-7"
    assert "train_critic<br/>tasks:train_critic<br/>ranks 4-7" in picture.read_text()


def test_the_trainer_is_planned_as_it_is_configured(capsys: pytest.CaptureFixture[str]) -> None:
    split = ["experiment=math", "trainer.num_ranks=4", "trainer.tensor_parallel_size=2"]
    assert main(["plan", "--gpus", "4", *split]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    cuts = {line[0]: line[5] for line in lines if len(line) == 6}
    assert (cuts["rollout"], cuts["old_log_prob"], cuts["train_actor"]) == ("4×1×1", "2×1×2", "2×1×2")


def test_branches_are_planned_as_they_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every node has all ranks of its group, and memory is what its dtype takes."""
    path = tmp_path / "branches.yaml"
    path.write_text(BRANCHES)
    words = [f"pipeline.yaml={path}", "experiment=math", "rollout.generation.dtype=bfloat16"]
    tolerance = ["trainer.parity_tolerance=1", "rollout.probe_tolerance=1"]
    assert main(["plan", "--gpus", "2", "--model", "1B", *words, *tolerance]) == 0
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines()]
    ranks = {line[0]: line[4] for line in lines if len(line) == 6}
    assert ranks["left"] == ranks["right"] == "0-1"
    [memory] = [line[3] for line in lines if line and line[0] == "0-1"]
    assert float(memory) == round((2e9 + 16e9 / 2 + 4e9 / 2) / 2**30, 2)
    assert "without activations" in out


def test_the_console_script_finds_a_module_in_the_current_folder(tmp_path: Path) -> None:
    """As the commands do that are started by ``python -m``; a script's own folder is another."""
    script = tmp_path / "bin" / "embodyflow"
    script.parent.mkdir()
    script.write_text("import sys\nfrom deployments.cli import main\nsys.exit(main())\n")
    (tmp_path / "my_pipeline.py").write_text("from pipelines.embodied_grpo import embodied_grpo as graph\n")
    command = [sys.executable, str(script), "plan", "pipeline.custom_fn=my_pipeline:graph"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "train_actor" in done.stdout


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--device-gib", "80", "--model", "seven"], "--model"),
        (["--device-gib", "80"], "--device-gib=80: needs --model, the parameters to fit in, such as 7B"),
        (["--cpus", "0"], "cluster: num_nodes and cpus_per_node must be at least 1"),
        (["--picture", "plan.jpeg"], "--picture=plan.jpeg: allowed are files ending in .svg, .dot, .mmd"),
        (["pipeline.name=ppo"], "pipeline.name=ppo: is not for the flow grpo"),
        (["--placement", "disaggregated", "--cpus", "1"], "placement=disaggregated: chain"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_a_line(
    words: list[str], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *words]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert answer in line
