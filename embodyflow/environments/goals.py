"""Which of a split's initial states an episode starts from."""

from typing import Any

import numpy as np


def choose_goal(rng: np.random.Generator, options: dict[str, Any] | None, split: str, num_goals: int) -> int:
    """Return ``options["goal"]``, or a goal drawn where it is not asked for.

    Args:
        rng: of the environment.
        options: of its ``reset``.
        split: named in the error.
        num_goals: that the split has.

    Raises:
        ValueError: the split has no such goal.
    """
    wanted = (options or {}).get("goal")
    goal = int(rng.integers(num_goals) if wanted is None else wanted)
    if not 0 <= goal < num_goals:
        raise ValueError(f"goal={goal}: split {split!r} has goals 0 to {num_goals - 1}")
    return goal
