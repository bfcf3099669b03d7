"""A scripted expert of PushT, which tries every push in a simulation of its own before it makes one."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from embodyflow.environments.pusht.shape import (
    AGENT_RADIUS,
    PLANE,
    TARGET,
    Floats,
    centre,
    contacts,
    corners,
    distance,
    rotation,
)

SPEED, LAG = 6.0, 2.0
"""Way of a pushing disc in a step, in pixels, and the distance of its goal in steps, which keeps that speed."""
HORIZON, SUBSTEPS, SECONDS = 16, 5, 0.1
"""Longest push in steps, simulated steps in a step, and length of a step."""
GAP, NEAR = 3.0, 4.0
"""Distance between disc and T where a push begins, and distance that counts as there, in pixels."""
SPACING = 12.0
"""Largest distance between neighbouring points of contact, in pixels."""
SLANTS = (-0.5, 0.0, 0.5)
"""Angles of pushes to the normal of the outline, in radians."""
PROGRESS, WORSE = 0.3, 3.0
"""Error that a further push must save, and rise of the error that ends a simulated push, in pixels."""
TRAVEL = 0.01
"""Price of the way to a push, in pixels of error per pixel."""
AROUND, ARC = 100.0, 0.5
"""Circle about the T's centre of gravity on which the disc goes around it: radius in pixels, arc in radians."""


@dataclass(frozen=True)
class Push:
    """A push in the frame of the T.

    Attributes:
        start: Position of the disc before it, float64 ``[2]``.
        direction: Unit vector, float64 ``[2]``.
    """

    start: Floats
    direction: Floats


class Pusher:
    """An expert that goes around the T, pushes it and chooses again; use one instance per episode."""

    def __init__(self) -> None:
        self._push: Push | None = None
        self._is_pushing = False

    def act(self, disc: Floats, pose: Floats) -> Floats:
        """Return the displacement of the disc's goal from the disc, float64 ``[2]`` in pixels.

        Args:
            disc: Position of the disc, float64 ``[2]``.
            pose: Pose of the T, float64 ``[3]``.
        """
        turn, model = rotation(pose[2]), Model()
        if self._is_pushing and self._push is not None:
            further = [turn @ rotation(slant) @ self._push.direction for slant in SLANTS]
            errors = [model.error_after(disc, pose, direction) for direction in further]
            if min(errors) < error_of(pose) - PROGRESS:
                return LAG * SPEED * further[int(np.argmin(errors))]
            self._push, self._is_pushing = None, False
        if self._push is None:
            self._push = best_push(model, disc, pose)
        start = turn @ self._push.start + pose[:2]
        if np.hypot(*(start - disc)) >= NEAR:
            return way_around(disc, start, pose)
        self._is_pushing = True
        return LAG * SPEED * (turn @ self._push.direction)


class Model:
    """The plane with the T and a disc that moves at a constant velocity, without walls."""

    def __init__(self) -> None:
        import pymunk
        from gym_pusht.envs.pusht import PushTEnv as Original

        self._space = pymunk.Space()
        self._space.damping = 0.0  # as gym-pusht's: nothing slides on
        self._disc: Any = Original.add_circle(self._space, (0, 0), AGENT_RADIUS)
        self._block: Any = Original.add_tee(self._space, (256, 256), 0)[0]

    def error_after(self, disc: Floats, pose: Floats, direction: Floats) -> float:
        """Return the smallest error during a push.

        Args:
            disc: Position of the disc before it, float64 ``[2]``.
            pose: Pose of the T before it, float64 ``[3]``.
            direction: Unit vector, float64 ``[2]``.
        """
        self._block.angle, self._block.position = float(pose[2]), tuple(map(float, pose[:2]))
        self._block.velocity, self._block.angular_velocity = (0.0, 0.0), 0.0
        self._disc.position, self._disc.velocity = tuple(map(float, disc)), tuple(SPEED / SECONDS * direction)
        for body in (self._block, self._disc):
            self._space.reindex_shapes_for_body(body)
        least = np.inf
        for _ in range(HORIZON):
            for _ in range(SUBSTEPS):
                self._space.step(SECONDS / SUBSTEPS)
            error = error_of(np.array([*self._block.position, self._block.angle]))
            if error > least + WORSE:
                break
            least = min(least, error)
        return least


def error_of(pose: Floats) -> float:
    """Return the mean distance of a T's corners to their targets, in pixels."""
    return float(np.hypot(*(corners(pose) - corners(TARGET)).T).mean())


def best_push(model: Model, disc: Floats, pose: Floats) -> Push:
    """Return the push that leaves the smallest error, with the price of the way to it."""
    turn = rotation(pose[2])
    costs: list[tuple[float, Push]] = []
    for point, normal in zip(*contacts(SPACING), strict=True):
        start = point + (AGENT_RADIUS + GAP) * normal
        there = turn @ start + pose[:2]
        is_free = distance(there, pose) > AGENT_RADIUS + GAP - 1  # in the corners of the T it is not
        if not is_free or np.abs(there - PLANE / 2).max() > PLANE / 2 - AGENT_RADIUS:
            continue
        for slant in SLANTS:
            push = Push(start, rotation(slant) @ -normal)
            error = model.error_after(there, pose, turn @ push.direction)
            costs.append((error + TRAVEL * float(np.hypot(*(there - disc))), push))
    return min(costs, key=lambda each: each[0])[1]


def way_around(disc: Floats, start: Floats, pose: Floats) -> Floats:
    """Return the displacement of the disc's goal, float64 ``[2]`` in pixels, on a way to a start around the T."""
    straight = start - disc
    line = disc + np.linspace(0.0, 1.0, 32)[:, None] * straight
    if distance(line, pose).min() > AGENT_RADIUS + 1:
        return straight
    middle = centre(pose)
    here, there = (float(np.arctan2(*(point - middle)[::-1])) for point in (disc, start))
    ahead = (there - here + np.pi) % (2 * np.pi) - np.pi
    if distance(disc, pose) < AGENT_RADIUS + 2 * NEAR and np.hypot(*(disc - middle)) < AROUND - 2 * NEAR:
        return 2 * AGENT_RADIUS * _away(disc, pose)
    angle = here + np.clip(ahead, -ARC, ARC)
    return middle + AROUND * np.array([np.cos(angle), np.sin(angle)]) - disc


def _away(disc: Floats, pose: Floats) -> Floats:
    """Return the unit vector, float64 ``[2]``, in which the distance to the T grows fastest."""
    steps = np.eye(2)
    slope = distance(disc + steps, pose) - distance(disc - steps, pose)
    return np.asarray(slope / max(float(np.hypot(*slope)), 1e-6))
