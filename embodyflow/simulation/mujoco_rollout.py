"""Stepping environments of one plain MuJoCo task, with one ``mujoco.rollout`` call per environment and action chunk.

Gymnasium's ``step`` spends much of its time in Python and on forces that these tasks never read. Here one call runs the
physics of a chunk, and :mod:`embodyflow.simulation.mujoco_tasks` computes observations and rewards for all environments
at once. The results are bit-identical to Gymnasium's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import gymnasium as gym
import mujoco
import numpy as np
import numpy.typing as npt
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit
from mujoco.rollout import Rollout

from embodyflow.simulation.mujoco_tasks import TASKS, Bools, Floats, Motion, Outcome

STATE = mujoco.mjtState.mjSTATE_FULLPHYSICS.value  # time, qpos, qvel, act; the rest is empty for these tasks
CONTINUED = STATE | mujoco.mjtState.mjSTATE_WARMSTART.value  # what a simulation continues from, bit by bit
NO_LIMIT = np.iinfo(np.int64).max


@dataclass(frozen=True)
class _Slot:
    """An environment's row in the arrays of states and steps, its time limit and its own simulation."""

    row: int
    time_limit: TimeLimit[Any, Any] | None
    model: Any
    data: Any


class MujocoRollout:
    """Steps environments of the same class with the same arguments; :meth:`for_envs` checks that.

    One ``MjData`` simulates all of them, so that it stays in the processor's cache; this object keeps their states.
    Environments are reset as usual; :meth:`load_states` then reads their states. When an episode ends within a chunk,
    its physics run on to the end of the chunk, so the environment must be reset before its next step.
    """

    def __init__(self, envs: Mapping[int, gym.Env[Any, Any]]) -> None:
        self._slots = {index: _slot(row, env) for row, (index, env) in enumerate(envs.items())}
        first: Any = next(iter(envs.values())).unwrapped
        self._first, self._model, self._data = first, first.model, mujoco.MjData(first.model)
        self._task = TASKS[type(first)]
        self._rollout = Rollout(nthread=0)
        self._num_state = mujoco.mj_stateSize(self._model, STATE)
        self._states = np.empty((len(envs), mujoco.mj_stateSize(self._model, CONTINUED)))
        self._rows = list(self._states)  # views, kept like those below
        self._limits = np.array([_max_steps(slot) for slot in self._slots.values()])
        self._steps = np.zeros(len(envs), np.int64)  # of each environment's episode
        # Live views of the simulation, kept because looking them up costs more than reading them.
        self._controls, self._bodies = self._data.ctrl, self._data.xpos

    @classmethod
    def for_envs(cls, envs: Mapping[int, gym.Env[Any, Any]]) -> Self | None:
        """Return a stepper, or ``None`` unless the environments are one known task with Gymnasium's own wrappers.

        Subclasses, other wrappers and different constructor arguments are not supported; such environments keep their
        own ``step``.
        """
        bases: list[Any] = [env.unwrapped for env in envs.values()]
        known = type(bases[0]) in TASKS and all(_have_equal_arguments(base, bases[0]) for base in bases)
        return cls(envs) if known and all(_has_standard_wrappers(env) for env in envs.values()) else None

    def load_states(self, indices: Sequence[int]) -> None:
        """Read the current states of environments, for example after their reset."""
        for slot in map(self._slots.__getitem__, indices):
            mujoco.mj_getState(slot.model, slot.data, self._states[slot.row], CONTINUED)
            self._steps[slot.row] = 0 if slot.time_limit is None else slot.time_limit._elapsed_steps or 0

    def step(self, indices: Sequence[int], actions: npt.NDArray[Any]) -> tuple[Outcome, Bools]:
        """Execute C actions in each of n environments.

        Args:
            indices: The n environments.
            actions: Actions ``[n, C, A]`` in the action space's dtype.

        Returns:
            The results that Gymnasium's ``step`` would return for each action, and truncated, bool ``[n, C]``.
        """
        rows, num_actions = [self._slots[index].row for index in indices], actions.shape[1]
        outcome = self._task.read(self._first, self._simulate(rows, actions))
        played = self._steps[rows, None] + np.arange(1, num_actions + 1)
        self._steps[rows] += num_actions
        return outcome, played >= self._limits[rows, None]

    def _simulate(self, rows: list[int], actions: npt.NDArray[Any]) -> Motion:
        (n, num_actions, _), model = actions.shape, self._model
        states = np.empty((n, 1 + num_actions, self._num_state))
        states[:, 0] = self._states[rows, : self._num_state]
        reads_bodies = self._task.reads_bodies
        bodies = np.empty((n, num_actions, model.nbody if reads_bodies else 0, 3))
        if num_actions == 1:  # one step is cheaper than one rollout
            self._step_all(rows, actions[:, 0], bodies[:, 0])
            states[:, 1] = self._states[rows, : self._num_state]
        elif reads_bodies:  # the state lacks bodies
            for row, action, state, body in zip(rows, actions, states, bodies, strict=True):
                self._step(row, action, state[1:], body)
        else:
            self._roll_out(rows, actions, states)
        position = states[..., 1 : 1 + model.nq]
        velocity = states[:, 1:, 1 + model.nq : 1 + model.nq + model.nv]
        return Motion(actions, position[:, :-1], position[:, 1:], velocity, bodies)

    def _step_all(self, rows: list[int], actions: npt.NDArray[Any], bodies: Floats) -> None:
        """Execute one action in each environment; change its row of states and write the body positions."""
        model, data, controls, skip = self._model, self._data, self._controls, self._first.frame_skip
        for i, (row, action) in enumerate(zip(rows, actions.astype(np.float64), strict=True)):
            kept = self._rows[row]
            mujoco.mj_setState(model, data, kept, CONTINUED)
            controls[:] = action
            mujoco.mj_step(model, data, skip)
            mujoco.mj_getState(model, data, kept, CONTINUED)
            if bodies.size:
                bodies[i] = self._bodies

    def _step(self, row: int, actions: npt.NDArray[Any], states: Floats, bodies: Floats) -> None:
        """Execute actions one by one as Gymnasium does; write the state and the body positions after each."""
        for t in range(len(actions)):
            self._step_all([row], actions[t : t + 1], bodies[t : t + 1])
            states[t] = self._states[row, : self._num_state]

    def _roll_out(self, rows: list[int], actions: npt.NDArray[Any], states: Floats) -> None:
        """Execute C actions of each environment in one call; fill ``states[:, 1:]``."""
        skip, num_substeps, size = self._first.frame_skip, actions.shape[1] * self._first.frame_skip, self._num_state
        models, datas, rollout = [self._model], [self._data], self._rollout.rollout
        controls = np.repeat(actions.astype(np.float64), skip, axis=1)
        substeps = np.empty((len(rows), num_substeps, size))
        timestep = self._model.opt.timestep
        for i, row in enumerate(rows):
            kept = self._states[row : row + 1]
            rollout(
                models,
                datas,
                kept[:, :size],
                controls[i : i + 1],
                skip_checks=True,
                nstep=num_substeps,
                initial_warmstart=kept[:, size:],
                state=substeps[i : i + 1],
            )
            if abs(substeps[i, -1, 0] - kept[0, 0] - num_substeps * timestep) > timestep / 2:
                # The physics diverged. A rollout stops at MuJoCo's warning; mj_step resets the state and continues.
                self._step(row, actions[i], states[i, 1:], np.empty((0,)))
            else:
                mujoco.mj_getState(self._model, self._data, kept[0], CONTINUED)
                states[i, 1:] = substeps[i, skip - 1 :: skip]


def _slot(row: int, env: gym.Env[Any, Any]) -> _Slot:
    base: Any = env.unwrapped
    time_limit = next((layer for layer in _layers(env) if isinstance(layer, TimeLimit)), None)
    return _Slot(row, time_limit, base.model, base.data)


def _max_steps(slot: _Slot) -> int:
    return NO_LIMIT if slot.time_limit is None else slot.time_limit._max_episode_steps


def _layers(env: gym.Env[Any, Any]) -> list[gym.Env[Any, Any]]:
    return [env, *_layers(env.env)] if isinstance(env, gym.Wrapper) else [env]


def _has_standard_wrappers(env: gym.Env[Any, Any]) -> bool:
    *wrappers, base = _layers(env)
    num_limits = sum(type(wrapper) is TimeLimit for wrapper in wrappers)
    return (
        all(type(wrapper) in (TimeLimit, OrderEnforcing, PassiveEnvChecker) for wrapper in wrappers)
        and num_limits <= 1
        and base.render_mode != "human"  # this mode draws at each step
    )


def _have_equal_arguments(one: Any, other: Any) -> bool:
    """Return True if two environments have the same class and constructor arguments."""
    arguments = [(env._ezpickle_args, env._ezpickle_kwargs) for env in (one, other) if type(env) is type(other)]
    return len(arguments) == 2 and arguments[0] == arguments[1]
