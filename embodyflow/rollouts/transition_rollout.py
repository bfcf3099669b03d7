"""Rollouts for off-policy training: every step is a row of its own."""

from typing import cast

import numpy as np
from gymnasium.spaces import Box

from embodyflow.config.robots.control import ControlConfig
from embodyflow.data.batches import Columns
from embodyflow.policies.base import Decision, StepDecisions
from embodyflow.rollouts.control_rollout import ControlRollout
from embodyflow.rollouts.embodied.executable_actions import stretched_actions
from embodyflow.simulation.vector.env import ChunkStep


class TransitionRollout(ControlRollout):
    """The rollout engine of off-policy training; see :class:`~embodyflow.rollouts.control_rollout.ControlRollout`.

    The actions of the first ``off_policy.random_transitions`` of a run are uniform in [-1, 1].
    """

    def _new_record(self) -> "TransitionRecord":
        return TransitionRecord(self.config, self.rank)

    def _decisions(self, uniforms: np.ndarray, first_step: int) -> StepDecisions:
        settings = self.config.off_policy
        assert settings is not None
        num_random, per_step = settings.random_transitions, self.world_size * self._num_envs
        decide = super()._decisions(uniforms, first_step)

        def explore(t: int, states: np.ndarray) -> Decision:
            return _random(uniforms[t]) if (first_step + t) * per_step < num_random else decide(t, states)

        return explore

    def _executable(self, actions: np.ndarray) -> np.ndarray:
        return stretched_actions(cast(Box, self._action_space), actions)


def _random(uniforms: np.ndarray) -> Decision:
    """Return actions ``[n, A]`` that are uniform in [-1, 1], by random numbers in [0, 1)."""
    actions = (2 * uniforms - 1).astype(np.float32)
    log_probs = np.full((len(actions), 1), -actions.shape[1] * np.log(2), np.float32)
    return Decision(actions, log_probs, actions[:, None])


class TransitionRecord:
    """Record of the steps of one rank's environments.

    Rows have the order of steps and, within a step, of environments. Their uids have this order over all ranks.

    Args:
        config: Run configuration.
        rank: Rank of the environments' worker.
    """

    def __init__(self, config: ControlConfig, rank: int) -> None:
        self._num_envs, self._num_steps = config.rollout.envs_per_worker, config.rollout.num_steps
        self._all_envs, self._rank = config.rollout.num_workers * self._num_envs, rank
        shape, policy = (self._num_steps, self._num_envs), config.policy
        self.columns: Columns = {
            "state": np.zeros((*shape, policy.state_dim), np.float32),
            "action_tokens": np.zeros((*shape, policy.action_dim), np.float32),
            "rewards": np.zeros(shape, np.float32),
            "final_state": np.zeros((*shape, policy.state_dim), np.float32),
            "terminated": np.zeros(shape, np.bool_),
            "truncated": np.zeros(shape, np.bool_),
        }

    def add(self, t: int, states: np.ndarray, decision: Decision, step: ChunkStep) -> None:
        """Record step t of every environment."""
        self.columns["state"][t] = states
        self.columns["action_tokens"][t] = decision.tokens
        self.columns["rewards"][t] = step.rewards[:, 0]
        self.columns["final_state"][t] = step.observation["state"]
        self.columns["terminated"][t], self.columns["truncated"][t] = step.terminated, step.truncated

    def end(self, envs: np.ndarray, t: int, states: np.ndarray, terminated: np.ndarray) -> None:
        """Do nothing: a row ends with its step."""

    def rows(self, first_uid: int, seeds: np.ndarray, policy_version: int) -> Columns:
        """Return one row per step and environment."""
        own_first = self._rank * self._num_envs * self._num_steps  # which :meth:`collect` has added
        envs = self._rank * self._num_envs + np.arange(self._num_envs)
        uids = first_uid - own_first + np.arange(self._num_steps)[:, None] * self._all_envs + envs
        rows = {name: column.reshape(-1, *column.shape[2:]) for name, column in self.columns.items()}
        return rows | {
            "uid": uids.ravel(),
            "seed": np.tile(seeds, self._num_steps),
            "policy_version": np.full(uids.size, policy_version, np.int64),
            "num_steps": np.ones(uids.size, np.int64),
        }
