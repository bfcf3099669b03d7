"""Environments of one plain MuJoCo task, a whole action chunk in one call of ``mujoco.rollout`` each.

Gymnasium's ``step`` of such a task spends a third of its time in Python and on forces that the task never looks at.
Here the physics of a chunk are one call, and what the task reads of them is computed for all environments at once
(:mod:`embodyflow.engines.mujoco_tasks`), with the same result to the last bit.
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

from embodyflow.engines.mujoco_tasks import TASKS, Bools, Floats, Motion, Outcome

STATE = mujoco.mjtState.mjSTATE_FULLPHYSICS.value  # time, qpos, qvel, act; then what no task here has
WARM_START = mujoco.mjtState.mjSTATE_WARMSTART.value


@dataclass(frozen=True)
class _Slot:
    """One environment's time limit and simulation; the arrays are live views of ``xpos`` and ``ctrl``."""

    time_limit: Any
    model: Any
    data: Any
    models: list[Any]
    datas: list[Any]
    bodies: Floats
    controls: Floats


class MujocoRollout:
    """Steps environments that are all built alike; :meth:`of` says whether they are.

    The environments themselves hold all state: reset them as ever. Past an environment's end within a chunk its
    physics run on, so it must be reset then.
    """

    def __init__(self, envs: Mapping[int, gym.Env[Any, Any]]) -> None:
        self._slots = {index: _slot(env) for index, env in envs.items()}
        first: Any = next(iter(envs.values())).unwrapped
        self._first = first
        self._task = TASKS[type(self._first)]
        self._rollout = Rollout(nthread=0)
        self._state_size = mujoco.mj_stateSize(self._first.model, STATE)

    @classmethod
    def of(cls, envs: Mapping[int, gym.Env[Any, Any]]) -> Self | None:
        """Return a stepper of the environments, or ``None`` unless they are one known task, wrapped as by ``make``.

        Subclasses, other wrappers and different constructor arguments among them are not known: what they do is
        theirs.
        """
        bases: list[Any] = [env.unwrapped for env in envs.values()]
        known = type(bases[0]) in TASKS and all(_alike(base, bases[0]) for base in bases)
        return cls(envs) if known and all(_plainly_wrapped(env) for env in envs.values()) else None

    def step(self, indices: Sequence[int], actions: npt.NDArray[Any]) -> tuple[Outcome, Bools]:
        """Execute C actions in each of n environments.

        Args:
            indices: the n environments.
            actions: ``[n, C, A]``, in the action space's dtype.

        Returns:
            What Gymnasium's ``step`` would return for each action, and truncated, bool ``[n, C]``.
        """
        slots = [self._slots[index] for index in indices]
        outcome = self._task.read(self._first, self._simulate(slots, actions))
        truncated = np.zeros(actions.shape[:2], np.bool_)
        for slot, row in zip(slots, truncated, strict=True):
            if slot.time_limit is not None:
                row[max(slot.time_limit._max_episode_steps - slot.time_limit._elapsed_steps - 1, 0) :] = True
                slot.time_limit._elapsed_steps += len(row)
        return outcome, truncated

    def _simulate(self, slots: Sequence[_Slot], actions: npt.NDArray[Any]) -> Motion:
        (n, num_actions, _), model = actions.shape, self._first.model
        states = np.empty((n, 1 + num_actions, self._state_size))
        bodies = np.empty((n, num_actions, model.nbody, 3) if self._task.reads_bodies else (n, num_actions, 0, 3))
        if self._task.reads_bodies:  # they are no part of the state, so one action at a time
            for t in range(num_actions):
                self._advance(slots, actions[:, t : t + 1], states[:, t : t + 2])
                for slot, body in zip(slots, bodies, strict=True):
                    body[t] = slot.bodies
        else:
            self._advance(slots, actions, states)
        position = states[..., 1 : 1 + model.nq]
        velocity = states[:, 1:, 1 + model.nq : 1 + model.nq + model.nv]
        return Motion(actions, position[:, :-1], position[:, 1:], velocity, bodies)

    def _advance(self, slots: Sequence[_Slot], actions: npt.NDArray[Any], states: Floats) -> None:
        """Execute C actions; fill ``states[:, 0]`` with the state before and ``states[:, 1:]`` with those after."""
        if actions.shape[1] == 1:  # a rollout costs more than a step, and saves nothing yet
            for slot, action, state in zip(slots, actions, states, strict=True):
                mujoco.mj_getState(slot.model, slot.data, state[0], STATE)
                _step(slot, action, state[1:], self._first.frame_skip)
            return
        skip, num_substeps = self._first.frame_skip, actions.shape[1] * self._first.frame_skip
        controls = np.repeat(actions.astype(np.float64), skip, axis=1)
        substeps = np.empty((len(slots), num_substeps, self._state_size))
        before = np.empty((len(slots), self._state_size + self._first.model.nv))
        size, rollout = self._state_size, self._rollout.rollout
        for i, slot in enumerate(slots):
            mujoco.mj_getState(slot.model, slot.data, before[i], STATE | WARM_START)
            rollout(
                slot.models,
                slot.datas,
                before[i : i + 1, :size],
                controls[i : i + 1],
                skip_checks=True,
                nstep=num_substeps,
                initial_warmstart=before[i : i + 1, size:],
                state=substeps[i : i + 1],
            )
        states[:, 0], states[:, 1:] = before[:, :size], substeps[:, skip - 1 :: skip]
        timestep = self._first.model.opt.timestep
        late = np.abs(states[:, -1, 0] - states[:, 0, 0] - num_substeps * timestep) > timestep / 2
        for i in np.flatnonzero(late):
            # It diverged: a rollout ends where MuJoCo warns, mj_step resets the clock and goes on.
            mujoco.mj_setState(slots[i].model, slots[i].data, before[i], STATE | WARM_START)
            _step(slots[i], actions[i], states[i, 1:], skip)


def _step(slot: _Slot, actions: npt.NDArray[Any], states: Floats, skip: int) -> None:
    """Execute actions one by one as Gymnasium does, writing the state after each."""
    for action, state in zip(actions, states, strict=True):
        slot.controls[:] = action
        mujoco.mj_step(slot.model, slot.data, nstep=skip)
        mujoco.mj_getState(slot.model, slot.data, state, STATE)


def _slot(env: gym.Env[Any, Any]) -> _Slot:
    base: Any = env.unwrapped
    time_limit = next((layer for layer in _layers(env) if isinstance(layer, TimeLimit)), None)
    return _Slot(time_limit, base.model, base.data, [base.model], [base.data], base.data.xpos, base.data.ctrl)


def _layers(env: gym.Env[Any, Any]) -> list[gym.Env[Any, Any]]:
    return [env, *_layers(env.env)] if isinstance(env, gym.Wrapper) else [env]


def _plainly_wrapped(env: gym.Env[Any, Any]) -> bool:
    *wrappers, base = _layers(env)
    num_limits = sum(type(wrapper) is TimeLimit for wrapper in wrappers)
    return (
        all(type(wrapper) in (TimeLimit, OrderEnforcing, PassiveEnvChecker) for wrapper in wrappers)
        and num_limits <= 1
        and base.render_mode != "human"  # which draws at each step
    )


def _alike(one: Any, other: Any) -> bool:
    arguments = [(env._ezpickle_args, env._ezpickle_kwargs) for env in (one, other) if type(env) is type(other)]
    return len(arguments) == 2 and arguments[0] == arguments[1]
