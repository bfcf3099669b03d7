"""LeRobot's arm SO-101 picks a block and places it: the package ``lerobot-env-so101`` with a wrapper and an expert.

The adapter (:mod:`embodyflow.environments.adapter`) makes its environment with the wrapper :class:`PickAndPlace` and
the expert :func:`pick_and_place`, as ``configs/env/so101.yaml`` says.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

Floats = NDArray[np.float64]

STATE_DIM = 11
STEP = 0.03
"""Displacement of the hand's goal by an action of 1, in metres."""
LEASH = 0.06
"""Largest distance of the hand's goal from the hand in each direction, in metres."""
REACH = np.array([[0.1, -0.2, 0.01], [0.4, 0.2, 0.3]])
"""Bounds of the hand's goal, in metres; they are within the package's own."""
STILL = 2e-6
"""Displacement that stands for none, in metres: at less than 1e-6 the package would move its goal to the hand."""
OPEN = 0.7
"""Opening of the jaw that an action of -1 commands, of the package's from 0 to 1; an action of 1 commands 0."""

GRASP = np.array([0.0, -0.008, 0.012])
"""Hand - block when the jaw closes, in metres. With 0 as second entry the fixed finger would stand on the block."""
HOLD = np.array([0.0, 0.0, 0.012])
"""Hand - block while the jaw holds it, in metres."""
HOVER, FUNNEL = 0.06, 0.03
"""Height of the hand above its place at the block while it is this far or farther from it sideways, in metres."""
CLEARANCE = 0.05
"""Height above the table at which the block is carried while it is at least that far from its goal, in metres."""
ALIGNED, BESIDE, NEAR = 0.006, 0.012, 0.02
"""Distances of the hand from the block that count as there, in metres: sideways in each direction, of a hand that has
descended and of one that closes its jaw; and in each direction, of a hand that holds it."""
PLACED, LOWERED = 0.015, 0.006
"""Distances of the block that count as there, in metres: sideways from the goal, and from the table."""
EMPTY, GRASPED = 0.2, 0.4
"""Openings of the jaw between which it holds the block."""
LAG = 0.7
"""Part of the hand's way to its goal that the expert counts as done, since the hand is late."""
CAREFUL = 0.5
"""Largest part of an action while the jaw holds the block."""


class PickAndPlace(gym.Wrapper[NDArray[np.float32], NDArray[np.float32], Any, NDArray[np.float32]]):
    """The pick-and-place environment with positions relative to each other, and a goal of the hand that is observed.

    The package adds displacements up to a goal of the hand that no observation shows, that may be far from the hand,
    and that an action of exactly 0 moves to the hand. Here the goal stays near the hand and is part of the state, which
    is float32 [11], in metres but for the second line; the hand is the point between the fingers::

        0:3   goal of the hand - hand
        3     opening of the jaw, 0 (closed) to 1
        4:7   block - hand
        7:10  goal of the block - block
        10    height of the block above its place at the start

    The action is float32 [4] in [-1, 1]: displacement of the hand's goal (1 is 3 cm), and the jaw (positive closes,
    negative opens). There are 10 actions per second. Reward, end and info are the package's.

    Args:
        env: ``lerobot_env_so101/SO101PickPlace-v0``.

    Raises:
        ValueError: The environment scales actions itself.
    """

    def __init__(self, env: gym.Env[Any, NDArray[np.float32]]) -> None:
        super().__init__(env)
        scale = (env.spec.kwargs if env.spec else {}).get("action_scale", 1.0)
        if scale != 1.0:
            raise ValueError(f"action_scale={scale}: must be 1.0, its default, since the wrapper takes metres")
        self.observation_space = Box(-np.inf, np.inf, (STATE_DIM,), np.float32)
        self.action_space = Box(-1.0, 1.0, (4,), np.float32)
        arm: Any = env.unwrapped
        self._arm, self._jaw = arm, int(arm.model.joint("gripper").qposadr[0])
        self._jaw_range = arm.model.actuator("gripper").ctrlrange
        self._table, self._goal = 0.0, np.zeros(3)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode."""
        _, info = self.env.reset(seed=seed, options=options)
        self._goal, self._table = self._hand(), float(self._block()[2])
        return self._observation(), info

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], Any, bool, bool, dict[str, Any]]:
        """Execute one action, float32 [4] in [-1, 1]."""
        numbers, hand = np.clip(np.asarray(action, np.float64), -1.0, 1.0), self._hand()
        goal = np.clip(np.clip(self._goal + STEP * numbers[:3], hand - LEASH, hand + LEASH), *REACH)
        move = goal - self._goal
        if np.linalg.norm(move) < STILL:
            move = np.array([0.0, 0.0, STILL])
        self._goal = self._goal + move
        _, reward, terminated, truncated, info = self.env.step(np.append(move, OPEN * (1.0 - numbers[3]) / 2.0))
        return self._observation(), reward, terminated, truncated, info

    def _hand(self) -> Floats:
        return np.array(self._arm.ik_point_pos)

    def _block(self) -> Floats:
        return np.array(self._arm.data.sensor("block_pos").data)

    def _observation(self) -> NDArray[np.float32]:
        hand, block = self._hand(), self._block()
        low, high = self._jaw_range
        opening = (self._arm.data.qpos[self._jaw] - low) / (high - low)
        parts = [self._goal - hand, [opening], block - hand, self._arm.goal_pos - block, [block[2] - self._table]]
        return np.concatenate(parts, dtype=np.float32)


def pick_and_place(env: gym.Env[Any, Any], observation: NDArray[np.float32]) -> Floats:
    """Return an expert's action, float64 [4] in [-1, 1]; for ``env.adapter.expert``.

    The package's own controller counts the steps of its phases. This one depends on the observation alone, so it goes
    on in every state that another policy has reached, and a policy can imitate it.

    Args:
        env: The environment, which is not asked.
        observation: An observation of :class:`PickAndPlace`, float32 [11].
    """
    state = observation.astype(np.float64)
    opening, to_block, to_goal, height = state[3], state[4:7], state[7:10], state[10]

    def move(way: Floats, closes: bool, most: float = 1.0) -> Floats:
        step = (way - LAG * state[0:3]) / STEP
        return np.append(np.clip(step, -most, most), 1.0 if closes else -1.0)

    if height < LOWERED and np.linalg.norm(to_goal[:2]) < PLACED:
        return move(np.zeros(3), closes=False)
    at_block = bool(np.abs(to_block + HOLD).max() < NEAR)
    if at_block and EMPTY < opening < GRASPED:
        return move(_carried(to_goal), closes=True, most=CAREFUL)
    to_grasp = to_block + GRASP
    sideways = float(np.abs(to_grasp[:2]).max())
    if at_block and sideways < BESIDE and opening > EMPTY:
        return move(to_grasp, closes=True)
    to_grasp[2] += HOVER * np.clip((sideways - ALIGNED) / FUNNEL, 0.0, 1.0)
    return move(to_grasp, closes=False)


def _carried(to_goal: Floats) -> Floats:
    """Return the block's way to its goal, up first and down last, float64 [3] in metres."""
    sideways = float(np.linalg.norm(to_goal[:2]))
    up = to_goal[2] + CLEARANCE * np.clip((sideways - PLACED / 2) / FUNNEL, 0.0, 1.0)
    return np.array([0.0, 0.0, up]) if up > CLEARANCE / 2 else np.append(to_goal[:2], up)
