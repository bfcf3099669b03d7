"""A scripted expert that hands the cube from the right arm to the left one."""

import numpy as np

from embodyflow.environments.aloha.arm import Floats

STEP = 0.03
"""Displacement of a hand's goal by an action of 1, in metres."""
MEETING = np.array([0.0, 0.5, 0.2])
"""Place of the cube where the left hand takes it, in metres."""
WAIT = MEETING - np.array([0.12, 0.0, 0.0])
"""Place of the left hand until the cube is there."""
HOVER, GRIP = np.array([0.0, 0.0, 0.08]), np.array([0.0, 0.0, 0.015])
"""Right hand - cube before it descends and when it grasps: deeper, the fingers would stand on the table, in metres."""
NEAR, ARRIVED = 0.01, 0.03
"""Distances that count as there, in metres."""
CLOSING_STEPS, CAREFUL = 5, 0.5
"""Actions until the fingers are closed, and the largest part of an action while they hold the cube."""


class Giver:
    """An expert whose right hand grasps the cube, lifts it and holds it out to the left one; one per episode."""

    def __init__(self) -> None:
        self._phase, self._waited = "hover", 0

    def act(self, left: Floats, right: Floats, cube: Floats) -> Floats:
        """Return the next action, float64 ``[8]`` in [-1, 1], given positions, float64 ``[3]`` each, in metres."""
        there = bool(np.abs(self._right_target(right, cube) - right).max() < NEAR)
        following = self._phase
        match self._phase:
            case "hover" if there:
                following = "descend"
            case "descend" if there:
                following = "grasp"
            case "grasp" if self._waited >= CLOSING_STEPS:
                following = "give"
        self._waited = self._waited + 1 if following == self._phase else 0
        self._phase = following
        takes = self._phase == "give" and bool(np.abs(cube - MEETING).max() < ARRIVED)
        left_move = (cube if takes else WAIT) - left
        closes = takes and bool(np.abs(left_move).max() < NEAR)
        right_move = self._right_target(right, cube) - right
        if self._phase == "give":
            right_move = np.clip(right_move, -CAREFUL * STEP, CAREFUL * STEP)
        hands = [*_hand(left_move, closes), *_hand(right_move, self._phase in ("grasp", "give"))]
        return np.array(hands)

    def _right_target(self, right: Floats, cube: Floats) -> Floats:
        match self._phase:
            case "hover":
                return cube + HOVER
            case "descend":
                return cube + GRIP
            case "give":
                return right + MEETING - cube
            case _:  # grasp does not move
                return right


def _hand(move: Floats, closes: bool) -> list[float]:
    """Return the four numbers of a hand's action."""
    return [*np.clip(move / STEP, -1.0, 1.0).tolist(), 1.0 if closes else -1.0]
