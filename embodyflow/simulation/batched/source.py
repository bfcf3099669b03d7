"""The batch that a configuration names, made by ``gymnasium.make_vec``."""

import functools
import warnings
from typing import Any

import gymnasium as gym

from embodyflow.config.robots.environment import EnvConfig
from embodyflow.simulation.batched.vector_env import BatchedVectorEnv
from embodyflow.simulation.batched.worker import Batch, BatchSource
from embodyflow.simulation.env_spec import env_spec
from embodyflow.simulation.supervision import Supervision


class Lane(gym.Env[Any, Any]):
    """The spaces of one lane, for checks of a policy; it cannot be stepped.

    Args:
        vector: Batch of the lane.
    """

    def __init__(self, vector: BatchedVectorEnv) -> None:
        self.observation_space, self.action_space = vector.observation_space, vector.action_space


def open_batch(env: EnvConfig, num_lanes: int, num_processes: int, supervision: Supervision) -> BatchedVectorEnv:
    """Build a batch with so many lanes.

    Args:
        env: Configuration with ``env.vector``.
        num_lanes: Number of lanes.
        num_processes: 1 steps it in a process of its own, 0 in this process.
        supervision: Fault limits and counters.

    Raises:
        ConfigError, EnvError: See :class:`~embodyflow.simulation.batched.vector_env.BatchedVectorEnv`.
    """
    assert env.vector is not None
    source = BatchSource(
        functools.partial(make_batch, env), env.vector.resets == "seeded", env.max_steps, env.reset_options
    )
    return BatchedVectorEnv(source, num_lanes, num_processes=num_processes, supervision=supervision, name=env.id)


def takes_limit(env: EnvConfig) -> bool:
    """Return True if a batch receives ``env.max_steps``: it has single environments, or is registered with a limit."""
    assert env.vector is not None
    return env.vector.mode == "sync" or env_spec(env.id).max_episode_steps is not None


def make_batch(env: EnvConfig, num_lanes: int) -> Batch:
    """Make the batch of a configuration.

    A vector entry point takes the time limit if its registration has one, which is Gymnasium's rule.
    """
    assert env.vector is not None
    arguments, own = dict(env.kwargs), {}
    if takes_limit(env):
        arguments["max_episode_steps"] = env.max_steps
    if env.vector.autoreset is not None:
        own["autoreset_mode"] = env.vector.autoreset
    mode = "sync" if env.vector.mode == "sync" else "vector_entry_point"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a missing autoreset mode is refused in a line of its own
        return gym.make_vec(env.id, num_lanes, vectorization_mode=mode, vector_kwargs=own, **arguments)
