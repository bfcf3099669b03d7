"""The part of an environment with numbered goals that does not depend on its simulator."""

import zlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from embodyflow.environments.choices import check_choice
from embodyflow.environments.goals import choose_goal

Observation = dict[str, NDArray[Any]]


class GoalEnv(gym.Env[Observation, NDArray[np.float32]]):
    """An environment whose episodes start at the numbered goals of a split.

    Attributes:
        tasks: Allowed values of ``task``.
        num_goals: Number of goals by split.
        instruction: Instruction of the task in English.
    """

    tasks: tuple[str, ...]
    instruction: str
    num_goals: Mapping[str, int] = MappingProxyType({"train": 4096, "demo": 256, "eval": 256})

    def __init__(
        self, task: str, split: Literal["train", "demo", "eval"], max_steps: int, render_mode: str | None
    ) -> None:
        """Check the arguments that all such environments have.

        Args:
            task: Task.
            split: Split of the goals.
            max_steps: Number of steps after which an episode is truncated.
            render_mode: Render mode, ``None`` or one of the metadata's.

        Raises:
            ValueError: An argument is not one of the allowed values.
        """
        check_choice("task", task, self.tasks)
        check_choice("split", split, self.num_goals)
        check_choice("render_mode", render_mode, (None, *self.metadata["render_modes"]))
        if max_steps < 1:
            raise ValueError(f"max_steps={max_steps}: must be at least 1")
        self.task, self.split, self.max_steps, self.render_mode = task, split, max_steps, render_mode
        self._goal, self._num_steps = 0, 0

    def _begin(self, seed: int | None, options: dict[str, Any] | None) -> None:
        """Begin the episode of ``options["goal"]``, or of a goal drawn from the seed.

        Raises:
            ValueError: The split has no such goal.
        """
        super().reset(seed=seed)
        self._goal = choose_goal(self.np_random, options, self.split, self.num_goals[self.split])
        self._num_steps = 0

    def _draws_of(self, goal: int) -> np.random.Generator:
        """Return a generator that depends on task, split and goal alone."""
        return np.random.default_rng([zlib.crc32(f"{self.task}/{self.split}".encode()), goal])

    def _is_cut(self, success: bool) -> bool:
        """Count a step; return True if it truncates the episode."""
        self._num_steps += 1
        return not success and self._num_steps >= self.max_steps

    def _info(self, success: bool) -> dict[str, Any]:
        return {"success": success, "instruction": self.instruction, "goal": self._goal}
