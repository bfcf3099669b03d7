"""An expert for levels of BabyAI whose mission is to go to an object in one room."""

from collections import deque
from collections.abc import Collection, Iterator
from typing import Any

_DIRECTIONS = ((1, 0), (0, 1), (-1, 0), (0, -1))
_LEFT, _RIGHT, _FORWARD = 0, 1, 2

Cell = tuple[int, int]
Pose = tuple[Cell, int]
"""Cell and direction of the agent."""


def go_to(env: Any) -> Iterator[int]:
    """Yield the actions of a shortest way to the object of the mission; of ways of one length, forward comes first.

    Args:
        env: Environment of a level GoToLocal of BabyAI after its reset; it must be stepped between two actions.

    Raises:
        ValueError: No way leads to the object.
    """
    grid = env.unwrapped
    yield from _shortest_way(grid, {(int(x), int(y)) for x, y in grid.instrs.desc.obj_poss})


def _shortest_way(grid: Any, cells: Collection[Cell]) -> list[int]:
    """Return the actions after which the agent faces one of the cells, by a breadth-first search over its poses."""
    start: Pose = ((int(grid.agent_pos[0]), int(grid.agent_pos[1])), int(grid.agent_dir))
    ways: dict[Pose, list[int]] = {start: []}
    queue = deque([start])
    while queue:
        pose = queue.popleft()
        (x, y), direction = pose
        ahead = (x + _DIRECTIONS[direction][0], y + _DIRECTIONS[direction][1])
        if ahead in cells:
            return ways[pose]
        moves = [(_LEFT, ((x, y), (direction - 1) % 4)), (_RIGHT, ((x, y), (direction + 1) % 4))]
        if grid.grid.get(*ahead) is None:
            moves.insert(0, (_FORWARD, (ahead, direction)))
        for action, reached in moves:
            if reached not in ways:
                ways[reached] = [*ways[pose], action]
                queue.append(reached)
    raise ValueError(f"no way leads to {sorted(cells)}")
