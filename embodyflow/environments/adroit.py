"""The Adroit hand turns a pen (Rajeswaran et al., 2018, arXiv:1709.10087), by gymnasium-robotics.

The adapter (:mod:`embodyflow.environments.adapter`) makes its environment with the wrapper :class:`Pen`, as
``configs/env/adroit_pen.yaml`` says.
"""

from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

FALLEN = 0.075
"""Height of the pen in metres below which the hand has dropped it; the package takes 5 from the reward there."""
HEIGHT = 26
"""Place of the pen's height in the observation."""
SCALE = 0.1
"""Factor of the rewards."""
SHARE = 0.35
"""Part of the joints' ranges, about their middles, that actions reach; with all of them random actions drop the pen."""


class Pen(gym.Wrapper[NDArray[np.float64], NDArray[np.float32], NDArray[np.float64], NDArray[np.float32]]):
    """The hand with a pen: a dropped pen ends the episode, success is reported, and rewards are a tenth.

    The authors end an episode there, and the package does not: none of its later steps can succeed. ``info`` has
    ``is_success`` (bool): the pen is within 7.5 cm of its place, and the cosine of the angle to its target direction is
    above 0.95. The reward of a step is at most 6.1, of which 6 are for success.

    The observation is the package's, ``[45]``::

        0:24   angles of the hand's joints
        24:27  position of the pen, in metres
        27:33  velocity of the pen, linear and angular
        33:36  direction of the pen
        36:39  target direction
        39:42  position of the pen - its place
        42:45  direction of the pen - target direction

    Args:
        env: ``AdroitHandPen-v1``.
    """

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[NDArray[np.float64], SupportsFloat, bool, bool, dict[str, Any]]:
        """Execute one action, float32 [24] in [-1, 1]: angles of the joints, scaled to their ranges."""
        observation, reward, terminated, truncated, info = self.env.step(SHARE * action)
        fallen = bool(observation[HEIGHT] < FALLEN)
        told = {**info, "is_success": bool(info["success"])}
        return observation, SCALE * float(reward), terminated or fallen, truncated, told
