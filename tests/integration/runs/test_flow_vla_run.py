"""Whole runs of small policies that denoise, by images and states, their trainer on two ranks."""

import json
from pathlib import Path

import pytest
from room_training import run_and_export
from small_runs import Runs
from support_path import SUPPORT_PATH

pytestmark = pytest.mark.integration


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smolvla", "pi0", "pi05"])
def test_a_policy_is_trained_by_images_and_states_and_loads_from_its_export(
    tmp_path: Path, prefect_api: str, ray_env: dict[str, str], name: str
) -> None:
    from embodyflow.policies.policy_config import ActingPolicyConfig
    from embodyflow.policies.policy_registry import build_policy, validate_policy

    runs = Runs(tmp_path).served_by(prefect_api, PYTHONPATH=SUPPORT_PATH, **ray_env)
    folder = run_and_export(runs, f"denoised-{name}", f"policy=tiny_{name}", "policy.scratch.hidden_size=32")
    assert json.loads((folder / "config.json").read_text())["type"] == name
    keys = {"state_dim": 2, "action_dim": 2, "chunk_size": 8, "num_steps": 4, "cameras": ("image",)}
    keys |= {"max_prompt_tokens": 220}
    config = validate_policy({"name": name, "path": str(folder), **keys}, ActingPolicyConfig)
    policy = build_policy(config, "cpu")
    own = policy.model.statistics
    assert (own.get_buffer(f"state_{own.kinds[0]}") != own.neutral[0]).all()
    assert policy.encode_instruction("move the dot to the middle").any()
