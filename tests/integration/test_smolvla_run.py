"""A whole run of a small SmolVLA by images and states, its trainer on two ranks."""

import json
from pathlib import Path

import pytest
from picture_room import WORDS
from small_runs import Runs

pytestmark = pytest.mark.integration
TESTS = Path(__file__).resolve().parents[1]
SMALL = (
    *("policy=tiny_smolvla", "policy.scratch.hidden_size=32", "iterations=2", "rollout.num_groups=2"),
    *("rollout.group_size=4", "rollout.envs_per_worker=4", "trainer.num_ranks=2", "trainer.epochs=1"),
    *("warm_start.num_demos=2", "warm_start.steps=20", "warm_start.batch_size=16", "evaluation.num_goals=2"),
    *("filter.drop_uniform=false", "tracking.tensorboard=false"),
)


def test_a_smolvla_is_trained_by_images_and_states_and_loads_from_its_export(tmp_path: Path, prefect_api: str) -> None:
    from embodyflow.policies.smolvla.configuration_smolvla import SmolVLAConfig
    from embodyflow.policies.smolvla.policy_smolvla import SmolVLAPolicy

    runs = Runs(tmp_path).served_by(prefect_api, PYTHONPATH=str(TESTS))
    process = runs.start(*WORDS, *SMALL, f"run_root={runs.root}", "run_id=denoised", "seed=3")
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output[-4000:]
    records = runs.metrics("denoised")
    digests = [record["weights_digest"] for record in records if "weights_digest" in record]
    assert len(set(digests)) == len(digests) == 2, "the weights never changed"
    gaps = [record["parity/log_prob_gap"] for record in records if "parity/log_prob_gap" in record]
    assert len(gaps) == 2 and max(gaps) < 1e-4, "two sharded ranks find the log-probs of the rollout"
    folder = runs.root / "denoised" / "policy"
    assert json.loads((folder / "config.json").read_text())["type"] == "smolvla"
    policy = SmolVLAPolicy(
        SmolVLAConfig(path=str(folder), state_dim=2, action_dim=2, chunk_size=8, num_steps=4, cameras=("image",)), "cpu"
    )
    assert policy.model.statistics.state_mean.any() and policy.encode_instruction("move the dot to the middle").any()
    runs.assert_nothing_runs(seconds=10)
