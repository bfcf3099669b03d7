"""A scripted expert of the task Door."""

import numpy as np

from embodyflow.environments.funnel import through_funnel
from embodyflow.environments.robosuite.lift_expert import STEP
from embodyflow.environments.robosuite.states import Floats

LATCH, HANDLE, OUT = -0.175, 0.125, 0.10
"""The latch's place along the door from its middle, the distance of the handle's end from it, and that of the handle
from the middle of the door's thickness, as in robosuite's model of the door: metres."""
FROM_END, ABOVE, SIDE = 0.015, 0.032, 0.053
"""Place of the hand at the handle, in metres: distance from the handle's end towards the latch, height above its
middle, and distance from it out of the door. One open finger is above the handle then, and the hand, which is 20 cm
wide, does not touch the door."""
HOVER, DIP = 0.05, 0.01
"""Height above its place from which the hand descends, and depth below it to which it does, in metres."""
NEAR, SLIPPED = 0.02, 0.06
"""Distances from its place up to which the hand touches the handle: before it has turned it, and then, in metres."""
TOUCHED = 0.1
"""Angle of a handle that has been turned, in radians."""
PRESS, HOLD, GAIN, OPEN = 0.04, 0.02, 0.1, 1.3
"""Depths to which the finger presses the handle: at most, and at the angle ``OPEN``, in metres; change of the depth by
the angle, in metres per radian; and that angle, in radians. The latch lets go at about 1.2."""
PULL, BEGIN, FULL = 0.05, 0.8, 1.1
"""Pull in metres, and the handle's angles from which the hand pulls, and from which it pulls fully, in radians."""


class Opener:
    """An expert that presses the handle down with a finger and pulls by its friction.

    Its action depends on the state alone, so it knows what to do in any state that another policy has reached. It
    presses again if the handle slips, also when the door is ajar.
    """

    def act(self, state: Floats) -> Floats:
        """Return the next action, float64 ``[4]`` in [-1, 1], given a state of ``door``, float64 ``[18]``."""
        turn = float(state[17])
        along, out = _directions(state[7:10] - state[4:7], turn)
        up = np.array([0.0, 0.0, 1.0])
        handle, above = np.cos(turn) * along - np.sin(turn) * up, np.sin(turn) * along + np.cos(turn) * up
        to_place = state[13:16] - FROM_END * handle + ABOVE * above + SIDE * out
        if np.linalg.norm(to_place) > (NEAR if turn < TOUCHED else SLIPPED):
            move = through_funnel(to_place - DIP * above, HOVER)
        else:
            share = np.clip((turn - BEGIN) / (FULL - BEGIN), 0.0, 1.0)
            press = min(HOLD + GAIN * (OPEN - turn), PRESS)
            move = to_place - press * above + share * (PULL - to_place @ out) * out
        return np.append(np.clip(move / STEP, -1.0, 1.0), -1.0)


def _directions(offset: Floats, turn: float) -> tuple[Floats, Floats]:
    """Return the horizontal directions along the handle, from the latch to its end, and out of the door.

    Args:
        offset: Position of the handle's end minus that of the door's middle, float64 ``[3]``, in metres.
        turn: Angle of the handle in radians.
    """
    heading = np.arctan2(offset[1], offset[0]) - np.arctan2(-OUT, LATCH + HANDLE * np.cos(turn))
    along = np.array([np.cos(heading), np.sin(heading), 0.0])
    return along, np.array([along[1], -along[0], 0.0])
