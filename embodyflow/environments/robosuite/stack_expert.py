"""A scripted expert of the task Stack."""

import numpy as np

from embodyflow.environments.funnel import ALIGNED, through_funnel
from embodyflow.environments.robosuite.lift_expert import STEP
from embodyflow.environments.robosuite.states import Floats

ON_TOP = 0.045
"""Height of the red cube's centre above the green one's when it stands on it, in metres."""
CLEARANCE = 0.04
"""Further height at which the red cube is carried, in metres."""
HOVER = 0.06
"""Height above the red cube from which the hand descends, in metres."""
NEAR, LOWERED = 0.014, 0.01
"""Distances of the hand from the red cube, and of that cube from its place in height, that count as there: metres."""
PRESS = 0.01
"""Depth below its place to which the red cube is lowered, in metres; the hand would slow down too much above it."""
HELD, FIRM = 0.06, 0.004
"""Distance between fingers that may hold the cube, a bit more than its diagonal, and how much less it is when they hold
it for sure, in metres. In between, the hand moves slowly."""


class Stacker:
    """An expert that picks, lifts, carries, lowers and lets go.

    Its action depends on the state alone, so it knows what to do in any state that another policy has reached.
    """

    def act(self, state: Floats) -> Floats:
        """Return the next action, float64 ``[4]`` in [-1, 1], given a state of ``stack``, float64 ``[14]``."""
        width, to_cube = state[3], state[7:10]
        to_top = state[11:14] + np.array([0.0, 0.0, ON_TOP])
        if np.abs(to_top[:2]).max() < 2 * ALIGNED and -LOWERED < to_top[2] < ON_TOP / 2:
            return np.array([0.0, 0.0, 0.0, -1.0])  # the hand waits while the fingers open
        if np.abs(to_cube).max() > NEAR:
            move, gripper = through_funnel(to_cube, HOVER), -1.0
        elif width > HELD:
            move, gripper = to_cube, 1.0
        else:
            move, gripper = through_funnel(to_top - np.array([0.0, 0.0, PRESS]), CLEARANCE + PRESS), 1.0
            move = np.clip(move, -STEP, STEP) * min((HELD - width) / FIRM, 1.0)
        return np.append(np.clip(move / STEP, -1.0, 1.0), gripper)
