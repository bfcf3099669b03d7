"""Episodes in progress: the policy decides, and environments execute its chunks, turn after turn."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np

from embodyflow.policies.base import Decision
from embodyflow.rollouts.embodied.episode_rows import EpisodeRows, GroupJournal, Slots, SolvedGoals
from embodyflow.rollouts.embodied.executable_actions import numbered_actions, recorded_actions
from embodyflow.simulation.vector.env import VectorEnv


@dataclass(frozen=True)
class Situation:
    """What the policy decides on: n episodes whose environments take a turn together.

    Attributes:
        rows: Rows of the episodes, int64 ``[n]``.
        t: Number of decisions in each episode so far, int64 ``[n]``.
        observation: Observations with ``instruction_ids``, ``[n, ...]`` by name.
        noise: Random numbers, float32 ``[n, R]``; ``None`` decides greedily.
        num_envs: Number of environments that take the turn, idle ones included.
    """

    rows: np.ndarray
    t: np.ndarray
    observation: Mapping[str, np.ndarray]
    noise: np.ndarray | None
    num_envs: int


Decide: TypeAlias = Callable[[Situation], Decision]
"""A policy that decides for the environments that take a turn together."""


@dataclass(frozen=True)
class Stage:
    """Environments to play in.

    Attributes:
        env: The environments.
        split: Split of their goals.
        tasks: Task of each environment.
        parts: Environments that take a turn together.
    """

    env: VectorEnv
    split: str
    tasks: Sequence[int]
    parts: Sequence[Sequence[int]]


@dataclass(frozen=True)
class _Turn:
    """Resets and steps in flight for a part of the environments.

    Attributes:
        starting: Environments that start an episode.
        playing: Environments that execute a chunk.
        decision: Decision that they execute; ``None`` if none does.
    """

    starting: Sequence[int]
    playing: Sequence[int] = ()
    decision: Decision | None = None


class EpisodeTurns:
    """Plays episodes from their resets to their ends.

    Args:
        record: Rows that the episodes fill.
        slots: Environments of the episodes.
        groups: Journal of the groups that are complete.
        decide: Policy.
        action_space: Action space of an environment.
        solved: Goals of an evaluation that are reached before the policy acts; ``None`` elsewhere.
    """

    def __init__(
        self,
        record: EpisodeRows,
        slots: Slots,
        groups: GroupJournal,
        decide: Decide,
        action_space: gym.Space[Any],
        solved: SolvedGoals | None = None,
    ) -> None:
        self._record, self._slots, self._groups, self._decide = record, slots, groups, decide
        self._action_space, self._solved = action_space, solved

    def play(self, parts: Sequence[Sequence[int]]) -> None:
        """Play all episodes; parts of the environments take turns.

        One part steps while the policy acts for the next. A part waits for its resets and steps at its next turn, so
        with several parts an episode starts one turn later than with one.
        """
        in_flight: dict[int, _Turn] = {}
        while True:
            for k, part in enumerate(parts):
                if k in in_flight:
                    self._end_turn(in_flight.pop(k))
                turn = self._begin_turn(part, is_alone=not in_flight)
                if turn is not None:
                    in_flight[k] = turn
            if not in_flight:
                return

    def _begin_turn(self, part: Sequence[int], *, is_alone: bool) -> _Turn | None:
        """Start episodes in a part and a step in its playing environments; return the turn to wait for, if any."""
        record, slots = self._record, self._slots
        starting = slots.begin_episodes(part)
        if starting and is_alone:
            slots.await_episodes(starting)
            starting = []
        playing = slots.playing(part)
        if not playing:
            return _Turn(starting) if starting else None
        rows, t, observation = slots.rows(playing), slots.decisions(playing), slots.observation(playing)
        record.record_observation(rows, t, observation)
        observation = {**observation, "instruction_ids": record.columns["instruction_ids"][rows]}
        noise = None if record.noise is None else record.noise[rows, t]
        decision = self._decide(Situation(rows, t, observation, noise, len(part)))
        # A Gaussian sample may lie outside the environment's bounds.
        actions = recorded_actions(self._action_space, decision.actions[:, : slots.chunk_size])
        decision = replace(decision, actions=actions)
        slots.begin_step(playing, numbered_actions(self._action_space, decision.actions))
        return _Turn(starting, playing, decision)

    def _end_turn(self, turn: _Turn) -> None:
        """Wait for a turn's resets, then for its step, and record the step."""
        slots = self._slots
        if turn.starting:
            slots.await_episodes(turn.starting)
        if turn.decision is None:
            return
        rows, t = slots.rows(turn.playing), slots.decisions(turn.playing)
        step = slots.await_step(turn.playing)
        self._record.record_step(rows, t, turn.decision, step)
        if self._solved is not None:
            first = t == 0
            solved, succeeded = slots.solved(turn.playing), step.infos["success"][:, 0] > 0
            self._solved.record_start(rows[first], solved[first], succeeded[first])
        self._groups.end(rows[step.terminated | step.truncated])
