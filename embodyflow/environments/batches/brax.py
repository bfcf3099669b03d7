"""Brax's simulators (Freeman et al. 2021, arXiv:2106.13281), which step all lanes of a batch in one program of JAX.

Brax's own adapter follows an older version of Gymnasium. This batch begins each episode by a seed of its own, and ends
it after ``max_episode_steps``.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

Array = npt.NDArray[Any]


class BraxBatch(VectorEnv[Array, Array, Array]):
    """One of Brax's environments in many lanes.

    Args:
        num_envs: Number of lanes.
        task_id: Brax's name of the environment, such as ``halfcheetah``.
        max_episode_steps: Steps after which an episode is truncated.
        backend: Brax's physics: ``spring``, ``positional`` or ``generalized``; ``mjx`` needs its packages.
        kwargs: Further arguments of the environment.

    Raises:
        gymnasium.error.DependencyNotInstalled: Brax is not installed.
        gymnasium.error.NameNotFound: Brax has no such environment.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012 Gymnasium's own

    def __init__(
        self, num_envs: int, task_id: str, max_episode_steps: int, backend: str = "spring", **kwargs: Any
    ) -> None:
        try:
            import jax
            from brax import envs
        except ImportError as error:
            raise gym.error.DependencyNotInstalled(
                "brax is not installed, run `pip install embodyflow[brax]`"
            ) from error
        known = sorted(envs._envs)
        if task_id not in known:
            raise gym.error.NameNotFound(f"task_id={task_id}: Brax has {', '.join(known)}")
        env = envs.get_environment(task_id, backend=backend, **kwargs)
        self.num_envs, self._limit = num_envs, max_episode_steps
        self._begin = jax.jit(jax.vmap(lambda seed: env.reset(jax.random.PRNGKey(seed))))
        self._step = jax.jit(jax.vmap(env.step))
        self._choose = jax.jit(jax.vmap(lambda chosen, new, old: jax.tree.map(_pick(jax.numpy, chosen), new, old)))
        self._state: Any = None
        self._lengths = np.zeros(num_envs, np.int64)
        self.single_observation_space = Box(-np.inf, np.inf, (env.observation_size,), np.float32)
        self.single_action_space = Box(-1, 1, (env.action_size,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Begin episodes.

        Args:
            seed: Seed of lane 0, whose successors are those of the next lanes, or a seed for each lane; lanes with
                ``None`` have seeds from the batch's own generator.
            options: ``reset_mask``, the lanes to reset, bool ``[num_envs]``; all by default.

        Raises:
            ValueError: There are other options, or the first reset leaves lanes out.
        """
        given = dict(options or {})
        mask = np.asarray(given.pop("reset_mask", np.ones(self.num_envs, bool)), bool)
        if given:
            raise ValueError(f"options={sorted(given)}: Brax knows none; allowed is reset_mask")
        if self._state is None and not mask.all():
            raise ValueError("reset_mask: must have all lanes in the first reset")
        first = self._begin(np.asarray(self._seeds(seed), np.uint32))
        self._state = first if mask.all() else self._choose(mask, first, self._state)
        self._lengths[mask] = 0
        return np.asarray(self._state.obs, np.float32), {}

    def _seeds(self, seed: int | Sequence[int | None] | None) -> list[int]:
        if isinstance(seed, int | np.integer):
            return [(int(seed) + lane) % 2**32 for lane in range(self.num_envs)]
        by_lane = [None] * self.num_envs if seed is None else seed
        return [int(self.np_random.integers(2**32)) if each is None else int(each) % 2**32 for each in by_lane]

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Execute an action in every lane."""
        self._state = self._step(self._state, np.asarray(actions, np.float32))
        self._lengths += 1
        terminated = np.asarray(self._state.done) > 0
        truncated = ~terminated & (self._lengths >= self._limit)
        observation, reward = np.asarray(self._state.obs, np.float32), np.asarray(self._state.reward, np.float64)
        return observation, reward, terminated, truncated, {}


def _pick(numpy: Any, chosen: Any) -> Any:
    """Return a function that takes the new value of a lane that is chosen, and else the old one."""
    return lambda new, old: numpy.where(chosen, new, old)
