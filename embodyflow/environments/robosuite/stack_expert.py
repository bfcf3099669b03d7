"""A scripted expert of the task Stack."""

import numpy as np

from embodyflow.environments.robosuite.lift_expert import STEP, Floats, Lifter

ON_TOP = 0.045
"""Height of the red cube's centre above the green one's when it stands on it, in metres."""
CLEARANCE = 0.04
"""Further height at which the red cube is carried, in metres."""
ALIGNED, LOWERED = 0.008, 0.006
"""Distances from the place above the green cube, and from that on it, that count as there, in metres."""


class Stacker:
    """An expert that picks, lifts, carries, lowers and lets go; use one instance per episode."""

    def __init__(self) -> None:
        self._phase, self._lifter = "lift", Lifter()

    def act(self, hand: Floats, cube: Floats, base: Floats) -> Floats:
        """Return the next action, float64 ``[4]`` in [-1, 1].

        Args:
            hand: Position of the gripper, float64 ``[3]``, in metres.
            cube: Position of the cube that goes on top, float64 ``[3]``, in metres.
            base: Position of the cube below it, float64 ``[3]``, in metres.
        """
        top = base + np.array([0.0, 0.0, ON_TOP])
        match self._phase:
            case "lift" if cube[2] > top[2] + CLEARANCE:
                self._phase = "carry"
            case "carry" if np.abs(top - cube)[:2].max() < ALIGNED:
                self._phase = "lower"
            case "lower" if cube[2] < top[2] + LOWERED:
                self._phase = "let go"
        match self._phase:
            case "lift":
                return self._lifter.act(hand, cube)
            case "carry":
                move = np.append((top - cube)[:2], 0.0)
            case "lower":
                move = top - cube
            case _:  # the hand waits while the fingers open
                move = np.zeros(3)
        return np.append(np.clip(move / STEP, -1.0, 1.0), -1.0 if self._phase == "let go" else 1.0)
