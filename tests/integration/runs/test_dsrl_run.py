"""A run by DSRL: warm start of the frozen policy, replay of its noise, evaluation, and a resume."""

import json
import os
from itertools import pairwise
from pathlib import Path

import pytest
from picture_room import WORDS
from small_runs import Runs, training_records
from support_path import SUPPORT_PATH
from waiting import finish

from embodyflow.record.run_folder import RunFolder

SMALL = (
    *(word for word in WORDS if not word.startswith("policy=")),
    *("algorithm=dsrl", "seed=1", "iterations=2", "rollout.num_workers=2", "rollout.num_groups=4"),
    *("rollout.envs_per_worker=2", "warm_start.num_demos=2", "warm_start.steps=10", "warm_start.batch_size=8"),
    *("policy.chunk_size=4", "policy.hidden_size=32", "policy.num_critics=3", "policy.scratch.hidden_size=32"),
    *("off_policy.batch_size=16", "off_policy.critic_updates=0", "off_policy.updates_per_transition=1"),
    *("evaluation.num_goals=2", "evaluation.video=false"),
)


@pytest.mark.slow
def test_a_run_steers_a_frozen_policy_and_goes_on_after_a_resume(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.env["PYTHONPATH"] = os.pathsep.join([SUPPORT_PATH, *filter(None, [os.environ.get("PYTHONPATH")])])
    process = runs.start(*SMALL, f"run_root={runs.root}", "run_id=steered", flow="sac")
    output = finish(process)
    assert process.returncode == 0, output[-4000:]
    runs.resume("steered", f"run_root={runs.root}", "iterations=3", flow="sac")
    folder = RunFolder(runs.root / "steered")
    records = training_records(folder.metrics.read())
    assert len({record["weights_digest"] for record in records}) == 3
    stored = [record["replay/num_transitions"] for record in records]
    steps = [record["train/optimizer_steps"] for record in records]
    assert steps == [new - old for old, new in pairwise([0, *stored])]  # an update for each decision
    assert not (folder.path / "demonstrations").exists()  # they have no noise
    assert 0 <= json.loads(folder.summary_path.read_text())["success_rate_after"] <= 1
