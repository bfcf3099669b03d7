"""Observations and rewards of Gymnasium's plain MuJoCo tasks, computed for many transitions at once.

Each function repeats the part of the task's own ``step`` that follows the physics, operation for operation, over arrays
instead of numbers. The tests check that results are bit-identical to Gymnasium's. ``TASKS`` maps classes to functions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv
from gymnasium.envs.mujoco.hopper_v5 import HopperEnv
from gymnasium.envs.mujoco.reacher_v5 import ReacherEnv
from gymnasium.envs.mujoco.swimmer_v5 import SwimmerEnv
from gymnasium.envs.mujoco.walker2d_v5 import Walker2dEnv

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Motion:
    """Physics of C actions in each of n environments.

    Attributes:
        actions: Actions ``[n, C, A]`` in the action space's dtype.
        position_before, position: ``qpos`` before and after each action, float64 ``[n, C, nq]``.
        velocity: ``qvel`` after each action, float64 ``[n, C, nv]``.
        bodies: ``xpos`` after each action, float64 ``[n, C, nbody, 3]``; empty unless the task reads bodies.
    """

    actions: npt.NDArray[Any]
    position_before: Floats
    position: Floats
    velocity: Floats
    bodies: Floats


@dataclass(frozen=True)
class Outcome:
    """Results of a task's ``step`` after each of C actions in n environments.

    Attributes:
        observation: Observations, float64 ``[n, C, S]``.
        reward: Rewards, float64 ``[n, C]``.
        terminated: Flags of termination, bool ``[n, C]``.
        infos: Values ``[n, C]`` by key of ``info``.
    """

    observation: Floats
    reward: Floats
    terminated: Bools
    infos: dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Task:
    """Reader of a class of environments.

    Attributes:
        read: Function of any environment of the class (for its parameters) and a motion that returns the outcome.
        reads_bodies: True if the task reads ``xpos``, which is not part of MuJoCo's state.
    """

    read: Callable[[Any, Motion], Outcome]
    reads_bodies: bool = False


def _half_cheetah(env: Any, motion: Motion) -> Outcome:
    forward, costs, infos = _run(env, motion)
    observation = _observe(env, motion, 1, motion.velocity)
    return Outcome(observation, forward - costs, np.zeros(costs.shape, np.bool_), infos)


def _swimmer(env: Any, motion: Motion) -> Outcome:
    forward, costs, infos = _run(env, motion)
    origin, after = motion.position_before[..., :2], motion.position[..., :2]
    infos |= {
        "y_position": after[..., 1],
        "y_velocity": ((after - origin) / env.dt)[..., 1],
        "distance_from_origin": _norm(after),
    }
    return Outcome(_observe(env, motion, 2, motion.velocity), forward - costs, np.zeros(costs.shape, np.bool_), infos)


def _hopper(env: Any, motion: Motion) -> Outcome:
    low, high = env._healthy_state_range
    state = np.concatenate([motion.position, motion.velocity], axis=-1)[..., 2:]
    return _upright(env, motion, ((low < state) & (state < high)).all(axis=-1))


def _walker2d(env: Any, motion: Motion) -> Outcome:
    return _upright(env, motion, np.ones(motion.position.shape[:2], np.bool_))


def _upright(env: Any, motion: Motion, healthy: Bools) -> Outcome:
    """Return the outcome of a runner that is healthy while its torso's height and angle stay in a range."""
    forward, costs, infos = _run(env, motion)
    (min_z, max_z), (min_angle, max_angle) = env._healthy_z_range, env._healthy_angle_range
    z, angle = motion.position[..., 1], motion.position[..., 2]
    healthy = healthy & (min_z < z) & (z < max_z) & (min_angle < angle) & (angle < max_angle)
    survive = healthy * env._healthy_reward
    infos |= {"z_distance_from_origin": z - env.init_qpos[1], "reward_survive": survive}
    observation = _observe(env, motion, 1, np.clip(motion.velocity, -10, 10))
    return Outcome(observation, forward + survive - costs, ~healthy & env._terminate_when_unhealthy, infos)


def _reacher(env: Any, motion: Motion) -> Outcome:
    ids = [env.model.body(name).id for name in ("fingertip", "target")]
    apart = motion.bodies[..., ids[0], :] - motion.bodies[..., ids[1], :]
    theta = motion.position[..., :2]
    parts = [np.cos(theta), np.sin(theta), motion.position[..., 2:], motion.velocity[..., :2], apart[..., :2]]
    distance = -_norm(apart) * env._reward_dist_weight
    control = -np.square(motion.actions).sum(axis=-1) * env._reward_control_weight
    infos = {"reward_dist": distance, "reward_ctrl": control}
    return Outcome(np.concatenate(parts, axis=-1), distance + control, np.zeros(control.shape, np.bool_), infos)


def _run(env: Any, motion: Motion) -> tuple[Floats, npt.NDArray[Any], dict[str, npt.NDArray[Any]]]:
    """Return the reward for running along x, the cost of control and the infos that all runners have."""
    x = motion.position[..., 0]
    velocity = (x - motion.position_before[..., 0]) / env.dt
    forward = env._forward_reward_weight * velocity
    costs = env._ctrl_cost_weight * np.square(motion.actions).sum(axis=-1)
    return forward, costs, {"x_position": x, "x_velocity": velocity, "reward_forward": forward, "reward_ctrl": -costs}


def _observe(env: Any, motion: Motion, num_coordinates: int, velocity: Floats) -> Floats:
    """Concatenate position and velocity; omit the first coordinates if the environment hides its position."""
    hidden = num_coordinates if env._exclude_current_positions_from_observation else 0
    return np.concatenate([motion.position[..., hidden:], velocity], axis=-1)


def _norm(vectors: Floats) -> Floats:
    """Return lengths over the last axis, by the dot product that ``np.linalg.norm`` uses for a single vector."""
    return np.sqrt(np.vecdot(vectors, vectors))


TASKS: dict[type, Task] = {
    HalfCheetahEnv: Task(_half_cheetah),
    HopperEnv: Task(_hopper),
    ReacherEnv: Task(_reacher, reads_bodies=True),
    SwimmerEnv: Task(_swimmer),
    Walker2dEnv: Task(_walker2d),
}
