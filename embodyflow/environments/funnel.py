"""Movements of scripted experts that reach a place from above."""

import numpy as np
from numpy.typing import NDArray

SLOPE = 1.5
"""Height above the place by the horizontal distance from it."""
ALIGNED = 0.008
"""Horizontal distance from which the movement leads straight down, in metres."""
LAG = 0.015
"""Height that may be missing before the movement leads sideways, in metres."""


def through_funnel(offset: NDArray[np.float64], height: float) -> NDArray[np.float64]:
    """Return the movement to a place through the funnel above it, float64 ``[3]``, in metres.

    Args:
        offset: Place minus own position, float64 ``[3]``, in metres; the third entry points up.
        height: Height of the funnel above the place, in metres.
    """
    sideways = float(np.linalg.norm(offset[:2]))
    move = offset + np.array([0.0, 0.0, min(height, SLOPE * max(sideways - ALIGNED, 0.0))])
    if move[2] > LAG:
        move[:2] = 0.0
    return move
