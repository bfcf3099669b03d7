"""Places of cubes on the table, as an episode wants them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

TABLE_HEIGHT = 0.8
"""Height of the table's surface, in metres."""
APART = 0.09
"""Smallest distance between the centres of two cubes, in metres. The open fingers fit between them."""

Pose = tuple[float, float, float]
"""Offset of a cube from the middle of the table in both directions, in metres, and turn about the vertical axis."""


class Placement:
    """A placement of robosuite that puts the cubes where an episode wants them.

    Attributes:
        poses: Pose of each cube.
    """

    def __init__(self) -> None:
        self.poses: list[Pose] = []
        self._cubes: list[Any] = []

    def reset(self) -> None:
        """Forget the objects."""
        self._cubes = []

    def add_objects(self, cubes: Any) -> None:
        """Take the cube, or a list of cubes."""
        self._cubes = list(cubes) if isinstance(cubes, list) else [cubes]
        self.poses = [(0.0, index * APART, 0.0) for index in range(len(self._cubes))]

    def sample(self, *_: Any, **__: Any) -> dict[str, tuple[Pose, NDArray[np.float64], Any]]:
        """Return position, quaternion (w, x, y, z) and object by name."""
        places = {}
        for cube, (x, y, angle) in zip(self._cubes, self.poses, strict=True):
            turn = np.array([np.cos(angle / 2), 0, 0, np.sin(angle / 2)])
            places[cube.name] = ((x, y, TABLE_HEIGHT - cube.bottom_offset[2]), turn, cube)
        return places


def draw_poses(rng: np.random.Generator, number: int, spread: float) -> list[Pose]:
    """Draw poses of cubes that are at least :data:`APART` from each other.

    Args:
        rng: Generator.
        number: Number of cubes.
        spread: Largest distance from the middle of the table in each direction, in metres.
    """
    poses: list[Pose] = []
    while len(poses) < number:
        x, y = rng.uniform(-spread, spread, 2)
        angle = float(rng.uniform(0, np.pi / 2))
        if all(np.hypot(x - other[0], y - other[1]) >= APART for other in poses):
            poses.append((float(x), float(y), angle))
    return poses
