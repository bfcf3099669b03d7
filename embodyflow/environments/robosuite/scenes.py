"""Tasks of robosuite that this project has."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from embodyflow.environments.robosuite.door_expert import Opener
from embodyflow.environments.robosuite.lift_expert import Lifter
from embodyflow.environments.robosuite.placement import Range
from embodyflow.environments.robosuite.stack_expert import Stacker
from embodyflow.environments.robosuite.states import CubeStates, DoorStates, Floats, ObjectStates


class Expert(Protocol):
    """A scripted expert, which acts on states; one instance plays one episode."""

    def act(self, state: Floats) -> Floats:
        """Return the next action, float64 ``[4]`` in [-1, 1], given a state, float64 ``[D]``."""


@dataclass(frozen=True)
class Places:
    """Places where the objects of a task begin.

    Attributes:
        number: Number of objects.
        spread: Largest distance of an object from the middle in each direction, in metres, unless another is chosen.
        spreads: Allowed values of it.
        middle: Middle of the places, x and y in metres; the robot stands at x = -0.56.
        turns: Range of an object's turn about the vertical axis, in radians.
    """

    number: int
    spread: float
    spreads: Range
    middle: tuple[float, float] = (0.0, 0.0)
    turns: Range = (0.0, np.pi / 2)


@dataclass(frozen=True)
class Scene:
    """A task of robosuite.

    Attributes:
        name: Its name in robosuite.
        instruction: Instruction in English.
        places: Places where its objects begin.
        states: Function that returns the states of its objects, given robosuite's environment.
        expert: Class of the scripted expert.
        state_dim: Number of entries of a state.
    """

    name: str
    instruction: str
    places: Places
    states: Callable[[Any], ObjectStates]
    expert: Callable[[], Expert]
    state_dim: int


def _cube(sim: Any) -> ObjectStates:
    return CubeStates(sim, ("cube_body_id",))


def _two_cubes(sim: Any) -> ObjectStates:
    return CubeStates(sim, ("cubeA_body_id", "cubeB_body_id"))


_DOORS = Places(1, 0.01, (0.0, 0.05), (-0.12, -0.35), (-np.pi / 2 - 0.25, -np.pi / 2))

SCENES = {
    "lift": Scene("Lift", "lift the cube from the table", Places(1, 0.03, (0.0, 0.2)), _cube, Lifter, 11),
    "stack": Scene(
        "Stack", "stack the red cube on the green cube", Places(2, 0.08, (0.06, 0.2)), _two_cubes, Stacker, 14
    ),
    "door": Scene("Door", "turn the handle and open the door", _DOORS, DoorStates, Opener, 18),
}
