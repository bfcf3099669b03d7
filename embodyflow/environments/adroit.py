"""The Adroit hand opens a door (Rajeswaran et al., 2018, arXiv:1709.10087), by gymnasium-robotics.

The adapter (:mod:`embodyflow.environments.adapter`) makes its environment with the wrapper :class:`Door`, as
``configs/env/adroit_door.yaml`` says.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

State = NDArray[np.float64]

NUM_JOINTS = 28
JOINTS = ((0,), (1,), (2,), (3,), (4,), (5,), (7, 8, 9, 11, 12, 13, 15, 16, 17, 20, 21, 22))
"""Joints that each number of an action moves: those of the arm (4) and the wrist (2), and all that curl the fingers."""
HELD = 4
"""Steps of the package, of 10 ms each, that an action lasts."""
MOVE = 0.15
"""Largest change of a target by an action, in units of half the joint's range."""
LATCH, HINGE, OFFSET = 27, 28, slice(35, 38)
"""Places in the observation of the latch's angle, the door's angle (rad) and the palm's position - the handle's (m)."""
LATCH_RANGE, HINGE_RANGE = 1.8, 1.57
"""Angles of the turned latch and the open door in rad."""
AJAR = 0.1
"""Angle in rad of a door that is ajar."""
AJAR_REWARD, HINGE_REWARD = 3.0, 10.0
"""Rewards of a step with the door ajar, and with the door open."""


class Door(gym.Wrapper[State, NDArray[np.float32], State, NDArray[np.float32]]):
    """The hand and arm at a door: actions move the joints' targets, and the reward leads to the handle and on.

    The package's actions are angles of 28 joints, each for 10 ms. Here an action changes the angles that the actuators
    hold, and lasts 40 ms, so random actions add up to movements of the hand. Its seven numbers move the joints of the
    arm and the wrist one by one, and curl the fingers together (:data:`JOINTS`); the other joints stay in the middle
    of their ranges. The observation is the package's, 39 numbers, and the seven targets in units of half the joint's
    range about the middle, ``[46]``.

    The reward of a package's step is minus the distance of palm and handle in metres, plus the turned part of the
    latch, three times the part of 0.1 rad by which the door is open, and ten times that of its range; of a door that is
    ajar the latch counts as turned. (Versions of the package before 1.4.3 reward a hand that is far from the handle,
    and none rewards the latch.) An action's reward is the sum over its steps. ``info`` has ``is_success`` (bool): the
    door is open by 1.35 rad.

    Args:
        env: ``AdroitHandDoor-v1``, whose time limit counts steps of 10 ms.
    """

    def __init__(self, env: gym.Env[State, NDArray[np.float32]]) -> None:
        super().__init__(env)
        assert env.observation_space.shape is not None
        self._targets = np.zeros(len(JOINTS))
        self.action_space = Box(-1.0, 1.0, (len(JOINTS),), np.float32)
        self.observation_space = Box(-np.inf, np.inf, (env.observation_space.shape[0] + len(JOINTS),), np.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[State, dict[str, Any]]:
        """Start an episode with every target in the middle of its range."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._targets = np.zeros(len(JOINTS))
        return self._with_targets(observation), info

    def step(self, action: NDArray[np.float32]) -> tuple[State, float, bool, bool, dict[str, Any]]:
        """Execute one action, float32 [7] in [-1, 1]: changes of the targets in units of :data:`MOVE`."""
        self._targets = np.clip(self._targets + MOVE * np.clip(action, -1, 1), -1, 1)
        angles, total = joint_angles(self._targets), 0.0
        for _ in range(HELD):
            observation, _, terminated, truncated, info = self.env.step(angles)
            total += reward_of(observation)
            if terminated or truncated:
                break
        told = {**info, "is_success": bool(info["success"])}
        return self._with_targets(observation), total, terminated, truncated, told

    def _with_targets(self, observation: State) -> State:
        return np.concatenate([observation, self._targets])


def joint_angles(targets: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the package's action ``[28]`` that holds targets ``[7]``."""
    angles = np.zeros(NUM_JOINTS, np.float32)
    for joints, target in zip(JOINTS, targets, strict=True):
        angles[list(joints)] = target
    return angles


def reward_of(observation: State) -> float:
    """Return the reward of a package's step by its observation, ``[39]``."""
    latch, ajar, hinge = np.clip(observation[[LATCH, HINGE, HINGE]] / (LATCH_RANGE, AJAR, HINGE_RANGE), 0, 1)
    return float(max(latch, ajar) + AJAR_REWARD * ajar + HINGE_REWARD * hinge - np.linalg.norm(observation[OFFSET]))
