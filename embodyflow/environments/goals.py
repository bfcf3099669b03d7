"""The choice of an episode's initial state in a split."""

from typing import Any

import numpy as np


def choose_goal(rng: np.random.Generator, options: dict[str, Any] | None, split: str, num_goals: int) -> int:
    """Return ``options["goal"]``, or draw a goal if the options have none.

    Args:
        rng: Generator of the environment.
        options: Options of ``reset``.
        split: Name of the split, for the error.
        num_goals: Number of goals in the split.

    Raises:
        ValueError: The split has no such goal.
    """
    wanted = (options or {}).get("goal")
    goal = int(rng.integers(num_goals) if wanted is None else wanted)
    if not 0 <= goal < num_goals:
        raise ValueError(f"goal={goal}: split {split!r} has goals 0 to {num_goals - 1}")
    return goal
