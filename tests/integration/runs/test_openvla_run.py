"""Whole runs of small OpenVLA-OFTs by images, their trainer on two ranks."""

import json
from pathlib import Path
from typing import Any

import pytest
from room_training import run_and_export
from small_runs import Runs
from support_path import SUPPORT_PATH

pytestmark = pytest.mark.integration


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "words", "own"),
    [
        ("openvla", (), {}),
        # The wide distribution gives each iteration groups with both outcomes.
        ("openvla_l1", ("policy.initial_scale=0.6",), {"state_dim": 2, "head_hidden_size": 64}),
    ],
    ids=["tokens", "L1"],
)
def test_an_openvla_is_trained_by_images_and_loads_from_its_export(
    tmp_path: Path, prefect_api: str, ray_env: dict[str, str], policy: str, words: tuple[str, ...], own: dict[str, Any]
) -> None:
    from embodyflow.policies.policy_config import ActingPolicyConfig
    from embodyflow.policies.policy_registry import build_acting_policy, validate_policy

    runs = Runs(tmp_path).served_by(prefect_api, PYTHONPATH=SUPPORT_PATH, **ray_env)
    folder = run_and_export(runs, "seen", f"policy=tiny_{policy}", *words)
    assert json.loads((folder / "config.json").read_text())["model_type"] == "openvla"
    keys = {"path": str(folder), "action_dim": 2, "chunk_size": 8, "cameras": ["image"]}
    keys |= {"decoding": "parallel", "gripper": "as_predicted", **own}
    loaded = build_acting_policy(validate_policy({"name": policy, **keys}, ActingPolicyConfig), "cpu")
    assert loaded.encode_instruction("move the dot to the middle").any()
