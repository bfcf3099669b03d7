"""Inverse kinematics of a ViperX 300 arm whose hand keeps its pitch."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SHOULDER = 0.12705
"""Height of the shoulder's axis above the base, in metres."""
UPPER, FOREARM = np.array([0.05955, 0.3]), 0.3
"""Upper arm at angle 0, outwards and up, and length of the forearm, in metres."""
HAND = 0.069744 + 0.135
"""Distance of the point between the fingers from the wrist, in metres."""


def joints(point: Floats, pitch: float) -> Floats:
    """Return the angles of waist, shoulder, elbow and wrist that bring the point between the fingers somewhere.

    The arm lies in the vertical plane through its base and the point, with the elbow up. A point out of reach is
    approached as far as the arm stretches.

    Args:
        point: The place, float64 [3], in metres from the base: forwards, to the left and up.
        pitch: Angle of the hand below the horizontal, in radians.

    Returns:
        Angles, float64 [4], in radians.
    """
    outwards = np.hypot(point[0], point[1]) - HAND * np.cos(pitch)
    upwards = point[2] - SHOULDER + HAND * np.sin(pitch)
    upper = np.hypot(*UPPER)
    far = np.clip(np.hypot(outwards, upwards), abs(upper - FOREARM) + 1e-3, upper + FOREARM - 1e-3)
    line = np.arctan2(upwards, outwards)
    rise = line + np.arccos(np.clip((upper**2 + far**2 - FOREARM**2) / (2 * upper * far), -1.0, 1.0))
    fall = np.arccos(np.clip((FOREARM**2 + far**2 - upper**2) / (2 * FOREARM * far), -1.0, 1.0)) - line
    shoulder = np.arctan2(UPPER[1], UPPER[0]) - rise
    return np.array([np.arctan2(point[1], point[0]), shoulder, fall - shoulder, pitch - fall])
