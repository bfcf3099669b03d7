"""An expert for MiniGrid's rooms with doors, whose missions are those of BabyAI: go to the red door."""

from collections import deque
from collections.abc import Iterator
from typing import Any

_DIRECTIONS = ((1, 0), (0, 1), (-1, 0), (0, -1))
_LEFT, _RIGHT, _FORWARD, _DONE = 0, 1, 2, 6

Cell = tuple[int, int]
Pose = tuple[Cell, int]
"""Cell and direction of the agent."""


def go_to_door(env: Any) -> Iterator[int]:
    """Yield actions that lead to the door of the mission: turns to the right until it is in view, a way, and *done*.

    The way is a shortest one, and the agent faces the door at its end; of ways of one length, forward comes first.

    Args:
        env: Environment of a level GoToDoor of MiniGrid after its reset; it must be stepped between two actions.

    Raises:
        ValueError: No way leads to the door.
    """
    grid = env.unwrapped
    x, y = grid.target_pos
    while not grid.in_view(x, y):
        yield _RIGHT
    yield from _shortest_way(grid, (int(x), int(y)))
    yield _DONE


def _shortest_way(grid: Any, target: Cell) -> list[int]:
    """Return the actions after which the agent faces the target, by a breadth-first search over its poses."""
    start: Pose = ((int(grid.agent_pos[0]), int(grid.agent_pos[1])), int(grid.agent_dir))
    ways: dict[Pose, list[int]] = {start: []}
    queue = deque([start])
    while queue:
        pose = queue.popleft()
        (x, y), direction = pose
        ahead = (x + _DIRECTIONS[direction][0], y + _DIRECTIONS[direction][1])
        if ahead == target:
            return ways[pose]
        moves = [(_LEFT, ((x, y), (direction - 1) % 4)), (_RIGHT, ((x, y), (direction + 1) % 4))]
        if grid.grid.get(*ahead) is None:
            moves.insert(0, (_FORWARD, (ahead, direction)))
        for action, reached in moves:
            if reached not in ways:
                ways[reached] = [*ways[pose], action]
                queue.append(reached)
    raise ValueError(f"no way leads to {target}")
