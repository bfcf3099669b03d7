"""A scripted expert of the task Lift."""

import numpy as np

from embodyflow.environments.robosuite.states import Floats

STEP = 0.05
"""Displacement of the gripper's goal by an action of 1, in metres."""
HOVER, NEAR = 0.06, 0.012
"""Height above the cube, and distance that counts as there, in metres."""
CLOSING_STEPS = 6


class Lifter:
    """An expert that hovers, descends, grasps and lifts; use one instance per episode."""

    def __init__(self) -> None:
        self._phase, self._waited = "hover", 0

    def act(self, state: Floats) -> Floats:
        """Return the next action, float64 ``[4]`` in [-1, 1], given a state of ``lift``, float64 ``[11]``."""
        hand, cube = state[0:3], state[4:7]
        near = bool(np.abs(self._target(hand, cube) - hand).max() < NEAR)
        following = self._phase
        match self._phase:
            case "hover" if near:
                following = "descend"
            case "descend" if near:
                following = "grasp"
            case "grasp" if self._waited >= CLOSING_STEPS:
                following = "lift"
        self._waited = self._waited + 1 if following == self._phase else 0
        self._phase = following
        move = np.clip((self._target(hand, cube) - hand) / STEP, -1.0, 1.0)
        return np.append(move, 1.0 if self._phase in ("grasp", "lift") else -1.0)

    def _target(self, hand: Floats, cube: Floats) -> Floats:
        match self._phase:
            case "hover":
                return cube + np.array([0.0, 0.0, HOVER])
            case "descend":
                return cube
            case "lift":
                return hand + np.array([0.0, 0.0, STEP])
            case _:  # grasp does not move
                return hand
