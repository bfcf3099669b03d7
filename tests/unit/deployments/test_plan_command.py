"""``embodyflow plan`` answers without a cluster."""

from pathlib import Path

import pytest

from deployments.cli import main


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


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--device-gib", "80", "--model", "seven"], "--model"),
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
