"""The environments of a control job: single ones, or the lanes of one batch."""

import functools
from collections.abc import Sequence
from contextlib import closing
from typing import Any, cast

import gymnasium as gym

from embodyflow.config.robots.environment import EnvConfig
from embodyflow.simulation.batched.source import Lane, open_batch
from embodyflow.simulation.batched.vector_env import BatchedVectorEnv
from embodyflow.simulation.make_env import make_env
from embodyflow.simulation.vector.env import Supervision, VectorEnv

SUCCESS = "is_success"
"""Key of the info in which environments with goals say that the goal is reached (gymnasium-robotics, panda-gym)."""


def control_env(
    env: EnvConfig,
    split: str,
    num_envs: int,
    num_processes: int,
    supervision: Supervision,
    info_keys: Sequence[str] = (),
) -> VectorEnv:
    """Build the environments that a rollout worker steps, one action at a time.

    Args:
        env: Configuration of an environment without tasks.
        split: Split of the initial states.
        num_envs: Number of environments, or of lanes with ``env.vector``.
        num_processes: Number of processes that step them; 0 steps them in this process.
        supervision: Fault limits and counters.
        info_keys: Numbers of the info to keep, which a batch cannot.
    """
    if env.vector is not None:
        return open_batch(env, num_envs, num_processes, supervision)
    functions = [functools.partial(make_env, env, None, split)] * num_envs
    return VectorEnv(functions, num_workers=num_processes, chunk_size=1, supervision=supervision, info_keys=info_keys)


def success_keys(env: EnvConfig) -> tuple[str, ...]:
    """Return the key of the info that reports success; empty if the environment's first step has none.

    A batch counts as an environment that reports none.
    """
    if env.vector is not None:
        return ()
    with closing(make_env(env, None, "train")) as one:
        one.action_space.seed(0)
        one.reset(seed=0)
        info = one.step(one.action_space.sample())[-1]
    return (SUCCESS,) if SUCCESS in info else ()


def prototype(env: EnvConfig, vector: VectorEnv) -> gym.Env[Any, Any]:
    """Return an environment that a policy's checks may read: a single one, or the spaces of a batch's lane."""
    return make_env(env, None, "train") if env.vector is None else Lane(cast(BatchedVectorEnv, vector))
