"""EnvPool's simulators (Weng et al. 2022, arXiv:2206.10558), which step all lanes of a batch in threads of C++.

EnvPool is a ``gymnasium.vector.VectorEnv`` of its own, but it takes seeds only when it is made and ignores those of a
reset. This batch makes it again for a reset with a seed.
"""

import functools
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

Array = npt.NDArray[Any]


class EnvPoolBatch(VectorEnv[Any, Any, Array]):
    """A pool of EnvPool. Lane i has the seed of the reset plus i.

    Args:
        num_envs: Number of lanes.
        task_id: EnvPool's name of the environment, such as ``HalfCheetah-v5``.
        max_episode_steps: Steps after which an episode is truncated.
        kwargs: Further arguments of ``envpool.make_gymnasium``, such as ``num_threads``.

    Raises:
        gymnasium.error.DependencyNotInstalled: EnvPool is not installed.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 Gymnasium's own

    def __init__(self, num_envs: int, task_id: str, max_episode_steps: int, **kwargs: Any) -> None:
        try:
            import envpool
        except ImportError as error:
            raise gym.error.DependencyNotInstalled(
                "envpool is not installed, run `pip install embodyflow[envpool]`"
            ) from error
        self._make = functools.partial(
            envpool.make_gymnasium, task_id, num_envs=num_envs, max_episode_steps=max_episode_steps, **kwargs
        )
        self._pool = self._make(seed=0)
        self.num_envs = num_envs
        self.single_observation_space = self._pool.observation_space
        self.single_action_space = self._pool.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every lane.

        Args:
            seed: Seed of lane 0; ``None`` goes on with the generators of the pool.
            options: Must be empty.

        Raises:
            ValueError: There are options, or seeds by lane.
        """
        if options or isinstance(seed, list):
            raise ValueError("EnvPool knows neither options nor seeds by lane; allowed is env.vector.resets=automatic")
        if seed is not None:
            self._pool.close()
            self._pool = self._make(seed=seed)
        observation, info = self._pool.reset()
        return observation, info

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Execute an action in every lane; a lane whose episode ended is reset instead."""
        observation, reward, terminated, truncated, info = self._pool.step(np.asarray(actions))
        return observation, reward, terminated, truncated, info

    def close(self, **kwargs: Any) -> None:
        """End the pool's threads."""
        del kwargs
        self._pool.close()
