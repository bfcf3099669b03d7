"""States of the objects in tasks of robosuite.

Positions are read without robosuite's sensors, which have rates of their own.
"""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class ObjectStates(Protocol):
    """The states of a task's objects."""

    def begin(self) -> None:
        """Take the objects as they are for the episode's first."""

    def read(self, hand: Floats) -> Floats:
        """Return the entries of the objects, float64 ``[D]``, given the gripper's position, float64 ``[3]``."""


class CubeStates:
    """States of cubes, the first of which is moved.

    The entries are, in metres: position of the first cube, cube - gripper, its height above its first one, and for each
    further cube its position minus that of the first.
    """

    def __init__(self, sim: Any, bodies: tuple[str, ...]) -> None:
        """Take robosuite's environment and the names of its attributes that have the cubes' bodies."""
        self._sim, self._bodies = sim, bodies

    def begin(self) -> None:
        """Take the first cube's height."""
        self._table = float(self._positions()[0][2])

    def read(self, hand: Floats) -> Floats:
        """Return the entries of the cubes, float64 ``[7]`` and 3 more for each further one."""
        cube, *others = self._positions()
        to_others = [other - cube for other in others]
        return np.concatenate([cube, cube - hand, np.array([cube[2] - self._table]), *to_others])

    def _positions(self) -> list[Floats]:
        return [self._sim.sim.data.body_xpos[getattr(self._sim, name)] for name in self._bodies]


class DoorStates:
    """States of a door with a handle.

    The entries are position of the door's middle, position of the handle's end, door - gripper, handle - gripper, all
    in metres, angle of the hinge, and that of the handle, which is positive below the horizontal, in radians.
    """

    def __init__(self, sim: Any) -> None:
        """Take robosuite's environment."""
        self._sim = sim

    def begin(self) -> None:
        """Nothing depends on the episode's first state."""

    def read(self, hand: Floats) -> Floats:
        """Return the entries of the door, float64 ``[14]``."""
        data = self._sim.sim.data
        door = data.body_xpos[self._sim.object_body_ids["door"]]
        handle = data.site_xpos[self._sim.door_handle_site_id]
        angles = data.qpos[[self._sim.hinge_qpos_addr, self._sim.handle_qpos_addr]]
        return np.concatenate([door, handle, door - hand, handle - hand, angles])
