"""The T of PushT and the space around it, in pixels."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

PLANE, AGENT_RADIUS = 512.0, 15.0
"""Side of the plane and radius of the disc."""
CENTRE = np.array([0.0, 45.0])
"""The T's centre of gravity in its own frame."""
TARGET = np.array([256.0, 256.0, np.pi / 4])
"""Pose (x, y, angle in radians) of the target."""
# The bar and the stem: middles and halves of the sides, in the frame of the T.
_MIDDLES, _HALVES = np.array([[0.0, 15.0], [0.0, 75.0]]), np.array([[60.0, 15.0], [15.0, 45.0]])
_OUTLINE = np.array(
    [[-60.0, 0.0], [60.0, 0.0], [60.0, 30.0], [15.0, 30.0], [15.0, 120.0], [-15.0, 120.0], [-15.0, 30.0], [-60.0, 30.0]]
)


def rotation(angle: float) -> Floats:
    """Return the matrix, float64 ``[2, 2]``, that turns points of the T's frame by an angle in radians."""
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def corners(pose: Floats) -> Floats:
    """Return the corners of a T, float64 ``[8, 2]``, given its pose, float64 ``[3]``."""
    return _OUTLINE @ rotation(pose[2]).T + pose[:2]


def centre(pose: Floats) -> Floats:
    """Return the centre of gravity of a T, float64 ``[2]``."""
    return rotation(pose[2]) @ CENTRE + pose[:2]


def distance(points: Floats, pose: Floats) -> Floats:
    """Return the distance of points, float64 ``[..., 2]``, to a T; 0 inside."""
    own = (points - pose[:2]) @ rotation(pose[2])
    outside = np.maximum(np.abs(own[..., None, :] - _MIDDLES) - _HALVES, 0.0)
    return np.sqrt((outside**2).sum(-1)).min(-1)


def contacts(spacing: float) -> tuple[Floats, Floats]:
    """Return points of the T's outline and their outward normals, float64 ``[N, 2]`` each, in its own frame.

    Args:
        spacing: Largest distance between neighbours on a side.
    """
    points, normals = [], []
    for start, end in zip(_OUTLINE, np.roll(_OUTLINE, -1, axis=0), strict=True):
        side = end - start
        length = float(np.hypot(*side))
        count = int(np.ceil(length / spacing))
        shares = (np.arange(count) + 0.5) / count
        points.append(start + shares[:, None] * side)
        normals.append(np.tile(np.array([side[1], -side[0]]) / length, (count, 1)))
    return np.concatenate(points), np.concatenate(normals)
