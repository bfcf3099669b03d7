"""Tests that the faster step is bit-identical to Meta-World's."""

import numpy as np
import pytest
from metaworld.env_dict import ENV_CLS_MAP
from scipy.spatial.transform import Rotation

from embodyflow.environments.metaworld import INSTRUCTIONS, MetaWorldEnv
from embodyflow.environments.metaworld_step import FastStep, TrustedRotation


@pytest.mark.parametrize("task", sorted(INSTRUCTIONS))
def test_a_step_equals_metaworlds_own(task: str) -> None:
    fast = MetaWorldEnv(task)._sim
    stock = type(fast)(camera_name="corner2", width=256, height=256)  # the same resets, but
    stock._partially_observable = False
    stock.__dict__.pop("sawyer_observation_space", None)
    stock._set_task_called = True
    step = ENV_CLS_MAP[task].step  # Meta-World's step on an instance that was not prepared
    assert isinstance(fast, FastStep) and step is not FastStep.step
    vector = fast.draw_vector(np.random.default_rng(0))
    np.testing.assert_array_equal(fast.reset_to(vector), stock.reset_to(vector))
    for action in np.random.default_rng(1).uniform(-1.2, 1.2, (25, 4)).astype(np.float32):
        observation, reward, _, _, info = fast.step(action)
        expected, expected_reward, _, _, expected_info = step(stock, action)
        np.testing.assert_array_equal(observation, expected)
        assert reward == expected_reward
        assert {k: float(v) for k, v in info.items()} == {k: float(v) for k, v in expected_info.items()}


def test_a_trusted_rotation_equals_scipys() -> None:
    rotations = Rotation.random(50, random_state=0).as_matrix()
    for matrix in rotations:
        np.testing.assert_array_equal(
            TrustedRotation.from_matrix(matrix).as_quat(), Rotation.from_matrix(matrix).as_quat()
        )
