"""``embodyflow plan`` works without a cluster."""

import re
from pathlib import Path

import pytest

from embodyflow.cli.main import main

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


def test_the_trainer_is_planned_as_configured(capsys: pytest.CaptureFixture[str]) -> None:
    split = ["experiment=math", "trainer.num_ranks=4", "trainer.tensor_parallel_size=2"]
    assert main(["plan", "--gpus", "4", *split]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    cuts = {line[0]: line[5] for line in lines if len(line) == 6}
    assert (cuts["rollout"], cuts["old_log_prob"], cuts["train_actor"]) == ("4×1×1", "2×1×2", "2×1×2")


def test_branches_are_planned_as_they_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every node uses all ranks of its group, and memory follows from the dtype."""
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


def test_adapters_need_less_memory_unless_a_warm_start_trains_all_weights(capsys: pytest.CaptureFixture[str]) -> None:
    def gib(*words: str) -> float:
        assert main(["plan", "--gpus", "2", "--model", "1B", "experiment=math", *words]) == 0
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        [memory] = [line[3] for line in lines if line and line[0] == "0-1"]
        return float(memory)

    def rounded(num_bytes: float) -> float:
        return round(num_bytes / 2**30, 2)

    assert gib() == rounded(4e9 + 16e9 / 2 + 4e9 / 2)
    assert gib("trainer.lora.rank=4") == rounded(4e9 + 16e9 / 2), "the policy without adapters serves as reference"
    assert gib("trainer.lora.rank=4", "warm_start=null") == rounded(4e9 + 4e9 / 2)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--device-gib", "80", "--model", "seven"], "--model"),
        (["--cpus", "0"], "cluster: num_nodes and cpus_per_node must be at least 1"),
        (["--picture", "plan.jpeg"], "--picture=plan.jpeg: allowed are files ending in .svg, .dot, .mmd"),
        (["--device-gib", "0", "--model", "7B"], "--device-gib=0: must be above 0"),
        (["--device-gib", "nan", "--model", "7B"], "--device-gib=nan: must be above 0"),
        (["--tensor-parallel", "0"], "--tensor-parallel=0: must be at least 1"),
        (["--tensor-parallel", "-1"], "--tensor-parallel=-1: must be at least 1"),
        (["--picture", "/nowhere/plan.dot"], "--picture=/nowhere/plan.dot: cannot be written: No such file"),
        (["pipeline.name=ppo"], "pipeline.name=ppo: does not work with the flow grpo"),
        (["--placement", "disaggregated", "--cpus", "1"], "placement=disaggregated: chain"),
    ],
)
def test_a_mistake_is_refused_in_one_line(words: list[str], answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *words]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert answer in line


def test_without_a_number_the_configured_policy_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "experiment=math", "trainer.lora.rank=4", "warm_start=null"]) == 0
    out = capsys.readouterr().out
    assert "593,344 parameters, 29,184 of them trained." in out
    assert "/dev/shm 0.00." in out


def test_the_disk_holds_kept_checkpoints_frozen_weights_and_images(capsys: pytest.CaptureFixture[str]) -> None:
    """Two checkpoints are kept, and there are that of iteration 0 and a new one: 4 of 12 bytes for trained weights."""
    assert main(["plan", "experiment=math", "trainer.lora.rank=4", "warm_start=null"]) == 0
    frozen, trained = 593_344 - 29_184, 29_184
    each, most = f"{12 * trained / 1e9:.3g}", f"{(4 * 12 * trained + 4 * frozen) / 1e9:.3g}"
    line = f"Disk of run_root: {each} GB for a checkpoint, at most {most} GB for all of them.\n"
    assert line in capsys.readouterr().out
    assert main(["plan", "experiment=drawer_open", "algorithm=drq"]) == 0
    assert re.search(
        r"for all of them, and at most [\d.]+ GB for the images of the replay buffer\.", capsys.readouterr().out
    )
