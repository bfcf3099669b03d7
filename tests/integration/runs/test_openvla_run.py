"""A whole run of a small OpenVLA-OFT by images, its trainer on two ranks."""

import json
from pathlib import Path

import pytest
from room_training import run_and_export
from small_runs import Runs
from support_path import SUPPORT_PATH

pytestmark = pytest.mark.integration


@pytest.mark.slow
def test_an_openvla_is_trained_by_images_and_loads_from_its_export(
    tmp_path: Path, prefect_api: str, ray_env: dict[str, str]
) -> None:
    from embodyflow.policies.embodied.openvla.configuration_openvla import OpenVLAConfig
    from embodyflow.policies.embodied.openvla.policy_openvla import OpenVLAPolicy

    runs = Runs(tmp_path).served_by(prefect_api, PYTHONPATH=SUPPORT_PATH, **ray_env)
    folder = run_and_export(runs, "seen")
    assert json.loads((folder / "config.json").read_text())["model_type"] == "openvla"
    policy = OpenVLAPolicy(
        OpenVLAConfig(path=str(folder), action_dim=2, chunk_size=8, decoding="parallel", gripper="as_predicted"), "cpu"
    )
    assert policy.encode_instruction("move the dot to the middle").any()
