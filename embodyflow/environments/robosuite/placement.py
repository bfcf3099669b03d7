"""Places of a task's objects, as an episode wants them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

TABLE_HEIGHT = 0.8
"""Height of the table's surface, in metres."""
APART = 0.09
"""Smallest distance between the centres of two cubes, in metres. The open fingers fit between them."""

Pose = tuple[float, float, float]
"""Offset of an object from the middle of its places in both directions, in metres, and turn about the vertical axis."""
Range = tuple[float, float]
"""Smallest and largest value."""


class Placement:
    """A placement of robosuite that puts the objects where an episode wants them.

    Attributes:
        poses: Pose of each object.
    """

    def __init__(self, middle: tuple[float, float]) -> None:
        """Take the middle of the objects' places, x and y in metres."""
        self.poses: list[Pose] = []
        self._middle = middle
        self._objects: list[Any] = []

    def reset(self) -> None:
        """Forget the objects."""
        self._objects = []

    def add_objects(self, objects: Any) -> None:
        """Take the object, or a list of objects."""
        self._objects = list(objects) if isinstance(objects, list) else [objects]
        self.poses = [(0.0, index * APART, 0.0) for index in range(len(self._objects))]

    def sample(self, *_: Any, **__: Any) -> dict[str, tuple[Pose, NDArray[np.float64], Any]]:
        """Return position, quaternion (w, x, y, z) and object by name."""
        places = {}
        for each, (x, y, angle) in zip(self._objects, self.poses, strict=True):
            turn = np.array([np.cos(angle / 2), 0, 0, np.sin(angle / 2)])
            position = (self._middle[0] + x, self._middle[1] + y, TABLE_HEIGHT - each.bottom_offset[2])
            places[each.name] = (position, turn, each)
        return places


def draw_poses(rng: np.random.Generator, number: int, spread: float, turns: Range) -> list[Pose]:
    """Draw poses of objects that are at least :data:`APART` from each other.

    Args:
        rng: Generator.
        number: Number of objects.
        spread: Largest distance from the middle of the places in each direction, in metres.
        turns: Range of the turn about the vertical axis, in radians.
    """
    poses: list[Pose] = []
    while len(poses) < number:
        x, y = rng.uniform(-spread, spread, 2)
        angle = float(rng.uniform(*turns))
        if all(np.hypot(x - other[0], y - other[1]) >= APART for other in poses):
            poses.append((float(x), float(y), angle))
    return poses
