"""A scripted expert that hands the cube from the right arm to the left one.

It remembers nothing: what it does depends on the positions alone, so it goes on in every state that another policy
reaches, and a policy that sees the positions can imitate it.
"""

from dataclasses import dataclass

import numpy as np

from embodyflow.environments.aloha.arm import Floats

STEP = 0.03
"""Displacement of a hand's goal by an action of 1, in metres."""
MEETING = np.array([0.0, 0.5, 0.2])
"""Place of the cube where the left hand takes it, in metres."""
WAIT = MEETING - np.array([0.12, 0.0, 0.0])
"""Place of the left hand until the cube is there."""
GRIP = np.array([0.0, 0.0, 0.013])
"""Right hand - cube when it grasps, in metres: deeper, the fingers would stand on the table."""
HOVER, FUNNEL = 0.06, 0.03
"""Height of the right hand above that place while it is this far or farther from it sideways, in metres."""
BESIDE, NEAR, TAKEN, ARRIVED = 0.008, 0.014, 0.03, 0.04
"""Distances that count as there, in metres: of the right hand sideways when it closes, and in each direction while it
holds the cube; of the left hand from the cube when it closes; and of the cube from the meeting place."""
GRASPED, EMPTY = 0.09, 0.074
"""Distances between the fingers' joints between which a hand holds the cube, in metres."""
CAREFUL = 0.5
"""Largest part of an action while the right hand holds the cube."""
LAG = 0.7
"""Part of a hand's way to its goal that the expert counts as done, since the hand is late."""


@dataclass(frozen=True)
class Hand:
    """A hand.

    Attributes:
        place: Point between the fingers, float64 ``[3]``, in metres.
        goal: Place that this point moves to, float64 ``[3]``, in metres.
        width: Distance between the fingers' joints, in metres.
    """

    place: Floats
    goal: Floats
    width: float

    def towards(self, target: Floats, closes: bool, most: float = 1.0) -> Floats:
        """Return the four numbers of the hand's action that bring it to a place."""
        expected = self.place + LAG * (self.goal - self.place)
        return np.append(np.clip((target - expected) / STEP, -most, most), 1.0 if closes else -1.0)


def hand_over(left: Hand, right: Hand, cube: Floats) -> Floats:
    """Return the next action, float64 ``[8]`` in [-1, 1], given the hands and the cube's position, float64 ``[3]``."""
    takes = bool(np.abs(cube - MEETING).max() < ARRIVED)
    closes = takes and bool(np.abs(cube - left.place).max() < TAKEN)
    return np.concatenate([left.towards(cube if takes else WAIT, closes), _give(right, cube)])


def _give(hand: Hand, cube: Floats) -> Floats:
    """Return the four numbers of the right hand's action: it hovers, descends, grasps and brings."""
    away = hand.place - cube - GRIP
    sideways = float(np.abs(away[:2]).max())
    at_cube = sideways < NEAR and abs(away[2]) < NEAR
    if at_cube and EMPTY < hand.width < GRASPED:
        return hand.towards(hand.place + MEETING - cube, closes=True, most=CAREFUL)
    if at_cube and sideways < BESIDE and hand.width > EMPTY:
        return hand.towards(cube + GRIP, closes=True)
    height = HOVER * float(np.clip((sideways - BESIDE) / FUNNEL, 0.0, 1.0))
    return hand.towards(cube + GRIP + np.array([0.0, 0.0, height]), closes=False)
