"""A scripted expert that picks an object from above and drops it into the basket."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

STEP = 0.05
"""Displacement of the gripper's goal by an action of 1, in metres."""
HOVER, LIFT, BACK_OFF = 0.12, 0.25, 0.008
NEAR, LIFTED, STALL = 0.012, 0.03, 0.0015
CLOSING_STEPS = 9
"""Number of actions to close the gripper; the set points of the fingers need eight."""


class PickAndPlace:
    """An expert that hovers, descends, grasps, lifts, carries and releases; use one instance per episode.

    A tall object touches the palm before the fingers reach its middle, and the arm would lean on it. So if the descent
    stalls, the gripper backs off a little and grasps there.
    """

    def __init__(self) -> None:
        self._phase, self._waited = "hover", 0
        self._last_height = np.inf
        self._grasp_height = self._carry_height = 0.0

    def act(self, gripper: Floats, thing: Floats, basket: Floats) -> Floats:
        """Return the next action, float64 ``[7]`` in [-1, 1], given positions, float64 ``[3]`` each, in metres."""
        self._advance(gripper, thing, basket)
        self._waited += 1
        self._last_height = gripper[2]
        action = np.zeros(7)
        action[:3] = np.clip((self._target(gripper, thing, basket) - gripper) / STEP, -1.0, 1.0)
        action[6] = 1.0 if self._phase in ("grasp", "lift", "carry") else -1.0
        return action

    def _target(self, gripper: Floats, thing: Floats, basket: Floats) -> Floats:
        match self._phase:
            case "hover":
                return thing + np.array([0.0, 0.0, HOVER])
            case "descend":
                return thing
            case "back off":
                return np.array([thing[0], thing[1], self._grasp_height])
            case "lift":
                return np.array([gripper[0], gripper[1], self._carry_height])
            case "carry":
                return np.array([basket[0], basket[1], self._carry_height])
            case _:  # grasp and release do not move
                return gripper

    def _advance(self, gripper: Floats, thing: Floats, basket: Floats) -> None:
        """Enter the next phase if the current one is complete."""
        error = np.abs(self._target(gripper, thing, basket) - gripper)
        stalls = self._waited > 5 and self._last_height - gripper[2] < STALL
        following = self._phase
        match self._phase:
            case "hover" if error.max() < NEAR:
                following = "descend"
            case "descend" if error.max() < NEAR:
                following, self._carry_height = "grasp", gripper[2] + LIFT
            case "descend" if stalls:
                following, self._grasp_height = "back off", gripper[2] + BACK_OFF
            case "back off" if error.max() < NEAR / 2 or self._waited > 10:
                following, self._carry_height = "grasp", gripper[2] + LIFT
            case "grasp" if self._waited >= CLOSING_STEPS:
                following = "lift"
            case "lift" if error[2] < LIFTED:
                following = "carry"
            case "carry" if error.max() < LIFTED:
                following = "release"
        if following != self._phase:
            self._phase, self._waited = following, 0
