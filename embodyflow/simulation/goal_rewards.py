"""Rewards of transitions for other goals than their own, by a goal environment's ``compute_reward``.

A goal environment observes a dict with the entries ``achieved_goal`` and ``desired_goal``. Its method
``compute_reward(achieved_goal, desired_goal, info)`` gives the reward of a step, or of B steps at once, for any goal
(the interface ``GoalEnv`` of Plappert et al. 2018, arXiv:1802.09464). The adapter puts both goals into the state.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from embodyflow.errors import ConfigError
from embodyflow.simulation.restorability import PROBE_SEED, probe_actions

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
TOLERANCE = 1e-4
"""Largest difference, absolute and relative, of rewards by goals in float32 from the environment's own."""

Goals = npt.NDArray[np.float32]


class GoalRewards:
    """Rewards and ends of transitions for any goals.

    Args:
        env: Goal environment with the adapter. It is reset once, since some environments need that, and must be closed
            by :meth:`close`.
        success_reward: Smallest reward at which the adapter ends an episode; ``None`` if no reward ends it.

    Attributes:
        achieved: Place of the achieved goal in a state.
        desired: Place of the desired goal in a state.

    Raises:
        ConfigError: The environment shows no goals, or has no ``compute_reward``.
    """

    def __init__(self, env: gym.Env[Any, Any], success_reward: float | None) -> None:
        adapter: Any = env.unwrapped
        for key in (ACHIEVED, DESIRED):
            if key not in adapter.state_slices:
                shown = ", ".join(map(repr, filter(None, adapter.state_slices))) or "no dict"
                raise ConfigError(
                    f"env.adapter.state: must show {key!r} with off_policy.hindsight, shows {shown}; allowed is "
                    f"[observation,{ACHIEVED},{DESIRED}] of an environment with goals"
                )
        self.achieved, self.desired = adapter.state_slices[ACHIEVED], adapter.state_slices[DESIRED]
        spaces = [adapter.inner.observation_space[key] for key in (ACHIEVED, DESIRED)]
        if spaces[0].shape != spaces[1].shape:
            raise ConfigError(
                f"off_policy.hindsight: needs goals of one shape, {ACHIEVED!r} has {spaces[0].shape} and {DESIRED!r} "
                f"{spaces[1].shape}; allowed is null"
            )
        self._space, self._success_reward = spaces[1], success_reward
        try:
            self._compute = adapter.inner.get_wrapper_attr("compute_reward")
        except AttributeError as error:
            raise ConfigError(
                "off_policy.hindsight: needs the environment's compute_reward(achieved_goal, desired_goal, info), "
                "which it does not have; allowed is null"
            ) from error
        self._terminates: Callable[..., Any] | None = None
        with contextlib.suppress(AttributeError):  # most environments do not have it
            self._terminates = adapter.inner.get_wrapper_attr("compute_terminated")
        self._env = env
        env.reset(seed=PROBE_SEED)

    def rewards(self, achieved: Goals, desired: Goals) -> npt.NDArray[np.float32]:
        """Return the rewards of B steps, float32 ``[B]``.

        Args:
            achieved: Goals that were achieved after the steps, float32 ``[B, G]``.
            desired: Goals of the steps, float32 ``[B, G]``.

        Raises:
            ValueError: ``compute_reward`` does not return one finite number for each step.
        """
        infos: list[dict[str, Any]] = [{} for _ in achieved]
        values = np.asarray(self._compute(self._own(achieved), self._own(desired), infos), np.float32)
        if values.shape != (len(achieved),) or not np.isfinite(values).all():
            found = f"shape {values.shape}" if np.isfinite(values).all() else "NaN or inf"
            raise ValueError(
                f"off_policy.hindsight: compute_reward gave {found} for {len(achieved)} goals; allowed is one finite "
                "number for each"
            )
        return values

    def terminated(self, achieved: Goals, desired: Goals, rewards: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
        """Return True for the steps, of B, that end an episode with these goals, bool ``[B]``.

        A step ends it if the environment's ``compute_terminated`` says so, or if its reward is the adapter's
        ``success_reward`` or more.

        Args:
            achieved: Goals that were achieved after the steps, float32 ``[B, G]``.
            desired: Goals of the steps, float32 ``[B, G]``.
            rewards: Rewards of the steps, float32 ``[B]``.
        """
        over = np.zeros(len(rewards), np.bool_)
        if self._success_reward is not None:
            over |= rewards >= self._success_reward
        if self._terminates is not None:  # the interface defines it for one step
            pairs = zip(self._own(achieved), self._own(desired), strict=True)
            over |= [bool(self._terminates(own, goal, {})) for own, goal in pairs]
        return over

    def check(self) -> None:
        """Check in a first step that ``compute_reward`` gives the reward of the step, and takes many steps at once.

        Raises:
            ConfigError: It does not; one line.
        """
        first, _ = self._env.reset(seed=PROBE_SEED)
        first = np.array(first["state"])
        after, reward, *_ = self._env.step(probe_actions(self._env.action_space)[0])
        states = np.stack([first, np.array(after["state"])])
        achieved, goal = states[:, self.achieved], states[1:, self.desired]
        # The first pair is the step; the goals of two others are achieved ones.
        pairs = achieved[[1, 0, 1, 0]], np.concatenate([goal, goal, achieved])
        try:
            together = self.rewards(*pairs)
            alone = np.concatenate([self.rewards(own, wanted) for own, wanted in self._one_by_one(*pairs)])
            self.terminated(*pairs, together)
        except ValueError as error:
            raise ConfigError(_line(error)) from error
        except Exception as error:  # a user's environment may raise anything; it is reported in one line
            raise ConfigError(
                f"off_policy.hindsight: compute_reward raised {type(error).__name__} for four goals and empty infos: "
                f"{_line(error)}"
            ) from error
        if not np.allclose(together, alone, TOLERANCE, TOLERANCE):
            raise ConfigError(
                "off_policy.hindsight: compute_reward gives another reward for a goal among others than for it alone; "
                "allowed is null"
            )
        if not np.isclose(together[0], float(reward), TOLERANCE, TOLERANCE):
            raise ConfigError(
                f"off_policy.hindsight: compute_reward gives {together[0]:g} for a first step whose reward is "
                f"{float(reward):g}; allowed are environments and env.adapter.wrappers whose reward is that of "
                "compute_reward"
            )

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _own(self, goals: Goals) -> npt.NDArray[Any]:
        """Return goals ``[B, G]`` in the shape and type of the environment's."""
        return goals.reshape(-1, *self._space.shape).astype(self._space.dtype)

    @staticmethod
    def _one_by_one(achieved: Goals, desired: Goals) -> list[tuple[Goals, Goals]]:
        return [(achieved[k : k + 1], desired[k : k + 1]) for k in range(len(achieved))]


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
