"""LeRobot's arm SO-101 picks a block and places it: the package ``lerobot-env-so101`` with states and an expert.

The adapter (:mod:`embodyflow.environments.adapter`) makes its environment with the wrapper :class:`BlockAndGoal` and
the expert :func:`pick_and_place`, as ``configs/env/so101.yaml`` says.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from embodyflow.environments.funnel import ALIGNED, through_funnel

STATE_DIM = 14
GRASP = 0.012
"""Height of the grasp point above the block's centre when the jaw closes, in metres."""
HOVER, CLEARANCE = 0.05, 0.06
"""Heights above the block from which the hand descends, and above the goal at which the block is carried, in metres."""
NEAR, LOWERED = 0.012, 0.006
"""Distances of the grasp point from the block, and of the block from the table, that count as there, in metres."""
HELD = 0.4
"""Opening of a jaw that holds the block, which is 0.3, with some room."""
SLOW, FAST = 0.4, 1.0
"""Largest displacements near a place and elsewhere, as shares of the environment's own."""


class BlockAndGoal(gym.Wrapper[NDArray[np.float32], NDArray[np.float32], Any, NDArray[np.float32]]):
    """The pick-and-place environment with positions relative to each other.

    The observation is float32 [14], in metres but for the second line::

        0:3    grasp point between the fingers
        3      opening of the jaw, 0 (closed) to 1
        4:7    block
        7:10   block - grasp point
        10     height of the block above its place at the start
        11:14  goal - block

    Args:
        env: ``lerobot_env_so101/SO101PickPlace-v0``.
    """

    def __init__(self, env: gym.Env[Any, NDArray[np.float32]]) -> None:
        super().__init__(env)
        self.observation_space = Box(-np.inf, np.inf, (STATE_DIM,), np.float32)
        arm: Any = env.unwrapped
        joint, self._range = arm.model.joint("gripper"), arm.model.actuator("gripper").ctrlrange
        self._gripper, self._table = int(joint.qposadr[0]), 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode."""
        _, info = self.env.reset(seed=seed, options=options)
        arm: Any = self.unwrapped
        self._table = float(arm.data.sensor("block_pos").data[2])
        return self._observation(), info

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], Any, bool, bool, dict[str, Any]]:
        """Execute one action, float32 [4] within the environment's own bounds."""
        _, reward, terminated, truncated, info = self.env.step(action)
        return self._observation(), reward, terminated, truncated, info

    def _observation(self) -> NDArray[np.float32]:
        arm: Any = self.unwrapped
        point, block = np.array(arm.ik_point_pos), np.array(arm.data.sensor("block_pos").data)
        low, high = self._range
        opening = (arm.data.qpos[self._gripper] - low) / (high - low)
        entries = [point, [opening], block, block - point, [block[2] - self._table], arm.goal_pos - block]
        return np.concatenate(entries, dtype=np.float32)


def pick_and_place(env: gym.Env[Any, Any], observation: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return an expert's action within the environment's own bounds, float64 [4]; for ``env.adapter.expert``.

    The package's own controller counts the steps of its phases. This one depends on the observation alone, so it knows
    what to do in any state that another policy has reached.

    Args:
        env: The environment, whose displacement by an action of 1 it reads.
        observation: An observation of :class:`BlockAndGoal`, float32 [14].
    """
    arm: Any = env.unwrapped
    state = observation.astype(np.float64)
    opening, to_goal, is_down = state[3], state[11:14], state[10] < LOWERED
    to_grasp = state[7:10] + np.array([0.0, 0.0, GRASP])
    if is_down and np.abs(to_goal[:2]).max() < 2 * ALIGNED:
        return np.array([0.0, 0.0, 0.0, 1.0])  # the hand waits while the jaw opens
    if np.abs(to_grasp).max() > NEAR:
        move, gripper = through_funnel(to_grasp, HOVER), 1.0
    elif opening > HELD:
        move, gripper = to_grasp, 0.0
    else:
        move, gripper = through_funnel(to_goal, CLEARANCE), 0.0
    largest = FAST if np.linalg.norm(move[:2]) > 2 * ALIGNED else SLOW
    return np.append(np.clip(move / arm._action_scale, -largest, largest), gripper)
