"""Temporal ensembling: an evaluation that averages what overlapping chunks plan for a step.

ACT (Zhao et al. 2023, arXiv:2304.13705, section IV-B): the policy decides at every step. A step executes the mean of
all actions that were planned for it, by weights w_i = exp(-m·i) with i = 0 for the oldest plan. LeRobot calls m
``temporal_ensemble_coeff``.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from embodyflow.policies.base import Decision
from embodyflow.rollouts.embodied.episode_turns import Decide, Situation

DrawNoise: TypeAlias = Callable[[int, int], np.ndarray]
"""Function from a row and a step to the noise of a decision, float32 ``[R]``."""


class TemporalEnsemble:
    """The means of planned actions, for N episodes.

    Args:
        coefficient: m, within ±1. Positive numbers prefer older plans.
        num_rows: N.
        horizon: H, actions that a decision plans; at most 700, so that no weight is infinite.
        action_dim: A.
    """

    def __init__(self, coefficient: float, num_rows: int, horizon: int, action_dim: int) -> None:
        self._weights = np.exp(-coefficient * np.arange(horizon))
        self._totals = self._weights.cumsum()
        self._ahead = np.arange(horizon)
        self._sums = np.zeros((num_rows, horizon, action_dim))  # weighted sums for the coming steps of each episode

    def mean(self, rows: np.ndarray, t: np.ndarray, planned: np.ndarray) -> np.ndarray:
        """Take new plans of n episodes and return the actions of the current step, float32 ``[n, A]``.

        Args:
            rows: Episodes, int64 ``[n]``, each once.
            t: Their steps, int64 ``[n]``; an episode's steps come one after the other from 0.
            planned: Actions planned for these steps and the next ones, float32 ``[n, H, A]``.
        """
        last = len(self._ahead) - 1
        older = np.minimum(t[:, None], last - self._ahead)  # plans that have an action for the step already
        sums = self._sums[rows] + self._weights[older][..., None] * planned
        self._sums[rows, :last] = sums[:, 1:]
        self._sums[rows, last] = 0
        mean: np.ndarray = sums[:, 0] / self._totals[older[:, 0]][:, None]
        return mean.astype(np.float32)


def ensembled(decide: Decide, ensemble: TemporalEnsemble, draw_noise: DrawNoise | None) -> Decide:
    """Return a policy that decides at every step and executes the ensemble's action alone.

    Its decisions have no tokens, and zeros as log-probs, one for each dimension: a mean of plans is no sample.

    Args:
        decide: Policy that plans.
        ensemble: Plans of the episodes.
        draw_noise: Source of the noise; ``None`` plans greedily.
    """

    def step(situation: Situation) -> Decision:
        rows, t = situation.rows, situation.t
        if draw_noise is not None:
            noise = [draw_noise(row, step) for row, step in zip(rows.tolist(), t.tolist(), strict=True)]
            situation = replace(situation, noise=np.stack(noise))
        actions = ensemble.mean(rows, t, decide(situation).actions)
        return Decision(np.zeros((len(rows), 0), np.float32), np.zeros_like(actions), actions[:, None])

    return step
