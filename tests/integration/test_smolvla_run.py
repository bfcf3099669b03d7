"""A whole run of a small SmolVLA by images and states, its trainer on two ranks."""

import json
from pathlib import Path

import pytest
from room_training import run_to_its_export
from small_runs import Runs

pytestmark = pytest.mark.integration
TESTS = Path(__file__).resolve().parents[1]


def test_a_smolvla_is_trained_by_images_and_states_and_loads_from_its_export(tmp_path: Path, prefect_api: str) -> None:
    from embodyflow.policies.smolvla.configuration_smolvla import SmolVLAConfig
    from embodyflow.policies.smolvla.policy_smolvla import SmolVLAPolicy

    runs = Runs(tmp_path).served_by(prefect_api, PYTHONPATH=str(TESTS))
    folder = run_to_its_export(runs, "denoised", "policy=tiny_smolvla", "policy.scratch.hidden_size=32")
    assert json.loads((folder / "config.json").read_text())["type"] == "smolvla"
    policy = SmolVLAPolicy(
        SmolVLAConfig(path=str(folder), state_dim=2, action_dim=2, chunk_size=8, num_steps=4, cameras=("image",)), "cpu"
    )
    assert policy.model.statistics.state_mean.any() and policy.encode_instruction("move the dot to the middle").any()
