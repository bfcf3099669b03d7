"""A run by DrQ on episodes: images in the replay buffer, and a resume."""

import json
from pathlib import Path

import pytest
from small_runs import Runs, straight_and_resumed

from embodyflow.record.run_folder import RunFolder

WORDS = (
    *("experiment=drawer_open", "algorithm=drq", "seed=1", "rollout.num_workers=2", "rollout.num_groups=4"),
    *("rollout.envs_per_worker=2", "env.max_steps=100", "env.kwargs.image_size=32", "warm_start.steps=20"),
    *("policy.image_size=32", "policy.channels=8", "policy.hidden_size=32", "off_policy.batch_size=16"),
    *("off_policy.critic_updates=0", "evaluation.num_goals=2", "evaluation.video=false"),
)


@pytest.mark.slow
def test_a_run_on_images_resumes_with_the_same_bits(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    straight, resumed = straight_and_resumed(runs, *WORDS, flow="sac")
    assert straight == resumed and len({*straight}) == 3
    folders = [RunFolder(runs.root / name).path / "replay" for name in ("straight", "resumed")]
    states = [json.loads((folder / "replay.json").read_text()) for folder in folders]
    assert states[0] == states[1] and states[0]["length"] > 100
    assert states[0]["frames"]["length"] == states[0]["length"] + 3 * 4  # one more than decisions in each episode
