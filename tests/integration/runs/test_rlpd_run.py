"""A run by RLPD on episodes: demonstrations, replay, evaluation, and a resume."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from small_runs import Runs, straight_and_resumed, training_records

from embodyflow.record.run_folder import RunFolder

WORDS = (
    *("experiment=push", "algorithm=rlpd", "seed=1", "iterations=2", "rollout.num_workers=2", "rollout.num_groups=4"),
    *("rollout.envs_per_worker=2", "env.max_steps=80", "warm_start.num_demos=2", "warm_start.steps=20"),
    *("policy.hidden_size=32", "policy.num_critics=3", "off_policy.batch_size=16", "off_policy.critic_updates=0"),
    *("evaluation.num_goals=2", "evaluation.video=false"),
)


@pytest.mark.slow
def test_a_run_learns_from_demonstrations_and_goes_on_after_a_resume(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    process = runs.start(*WORDS, f"run_root={runs.root}", "run_id=pushed", flow="sac")
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 0, output[-4000:]
    runs.resume("pushed", f"run_root={runs.root}", "iterations=3", flow="sac")
    folder = RunFolder(runs.root / "pushed")
    records = training_records(folder.metrics.read())
    assert len({record["weights_digest"] for record in records}) == 3
    stored = [record["replay/num_transitions"] for record in records]
    steps = [record["train/optimizer_steps"] for record in records]
    assert steps == [3 * (new - old) for old, new in pairwise([0, *stored])]  # three updates for each decision
    state = json.loads((folder.path / "demonstrations" / "replay.json").read_text())
    assert state["num_envs"] == 5 and state["length"] > 50  # every step of two demonstrations
    assert 0 <= json.loads(folder.summary_path.read_text())["success_rate_after"] <= 1


@pytest.mark.slow
def test_a_run_whose_rollouts_run_ahead_resumes_with_the_same_bits(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    straight, resumed = straight_and_resumed(runs, *WORDS, "rollout.max_staleness=1", flow="sac")
    assert straight == resumed and len({*straight}) == 3
