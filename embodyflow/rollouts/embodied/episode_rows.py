"""Episodes in progress: their environments, their rows and the groups that are complete."""

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from embodyflow.columns import FINAL
from embodyflow.config.robots.embodied import EmbodiedConfig
from embodyflow.config.robots.environment import EnvConfig
from embodyflow.data.batches import Columns
from embodyflow.data.rows_file import Journal
from embodyflow.data.tables import Table
from embodyflow.errors import ConfigError
from embodyflow.policies.base import ActingPolicy, Decision
from embodyflow.rollouts.embodied.action_noise import chunk_uniforms
from embodyflow.rollouts.group_rollout import GroupRow
from embodyflow.seeding import derive_rng
from embodyflow.simulation.vector.env import ChunkStep, VectorEnv


@dataclass(frozen=True)
class Episode(GroupRow):
    """An episode to play.

    Attributes:
        env_task_id: Index into ``env.tasks``.
        goal: Index of the initial state in its split.
    """

    env_task_id: int
    goal: int


class Slots:
    """The assignment of episodes to environments (slots), with the current decision of each.

    Args:
        env: Environments.
        episodes: Episodes to play.
        tasks: Task of each environment.
        done: Rows of episodes that are already complete.
    """

    def __init__(self, env: VectorEnv, episodes: Sequence[Episode], tasks: Sequence[int], done: Set[int]) -> None:
        self._env, self._episodes, self._tasks = env, episodes, tasks
        self._waiting: dict[int, deque[int]] = {task: deque() for task in tasks}
        for row, episode in enumerate(episodes):
            if row not in done:
                self._waiting[episode.env_task_id].append(row)
        self._row: dict[int, int] = {}  # row by slot, for slots that are playing or starting
        self._starting: set[int] = set()  # slots whose reset is in flight
        self._decision: dict[int, int] = {}
        self._observation: dict[str, np.ndarray] = {}

    @property
    def chunk_size(self) -> int:
        """C, actions that an environment executes at a time."""
        return self._env.chunk_size

    def episode(self, slot: int) -> Episode:
        """Return the episode of an environment."""
        return self._episodes[self._row[slot]]

    def begin_episodes(self, part: Sequence[int]) -> list[int]:
        """Start waiting episodes in the idle environments of a part; return these environments."""
        starting = []
        for slot in part:
            waiting = self._waiting[self._tasks[slot]]
            if slot not in self._row and waiting:
                self._row[slot], self._decision[slot] = waiting.popleft(), 0
                starting.append(slot)
        if starting:
            goals = [self.episode(slot).goal for slot in starting]
            self._env.reset_async(starting, seeds=goals, options=[{"goal": goal} for goal in goals])
            self._starting.update(starting)
        return starting

    def await_episodes(self, starting: Sequence[int]) -> None:
        """Wait for pending resets; these environments are then playing."""
        self._store(starting, self._env.reset_wait())
        self._starting.difference_update(starting)

    def playing(self, part: Sequence[int]) -> list[int]:
        """Return the environments of a part that are playing."""
        return [slot for slot in part if slot in self._row and slot not in self._starting]

    def rows(self, slots: Sequence[int]) -> np.ndarray:
        """Return the rows of the environments' episodes, int64 ``[n]``."""
        return np.array([self._row[slot] for slot in slots])

    def decisions(self, slots: Sequence[int]) -> np.ndarray:
        """Return the number of decisions in each environment's episode so far, int64 ``[n]``."""
        return np.array([self._decision[slot] for slot in slots])

    def observation(self, slots: Sequence[int]) -> dict[str, np.ndarray]:
        """Return the current observations of environments, ``[n, ...]`` by name."""
        return {name: values[slots] for name, values in self._observation.items()}

    def solved(self, slots: Sequence[int]) -> np.ndarray:
        """Return True for the environments whose reset said that the goal is reached, bool ``[n]``."""
        return self._env.solved(slots)

    def begin_step(self, slots: Sequence[int], actions: np.ndarray) -> None:
        """Start an action chunk in each environment."""
        self._env.step_async(actions, slots)

    def await_step(self, slots: Sequence[int]) -> ChunkStep:
        """Wait for the chunk and return its result; environments whose episode ended become idle."""
        step = self._env.step_wait()
        self._store(slots, step.observation)
        for slot, over in zip(slots, step.terminated | step.truncated, strict=True):
            self._decision[slot] += 1
            if over:
                del self._row[slot]
        return step

    def _store(self, slots: Sequence[int], observation: Mapping[str, np.ndarray]) -> None:
        for name, values in observation.items():
            if name not in self._observation:
                shape = (self._env.num_envs, *values.shape[1:])
                self._observation[name] = np.zeros(shape, values.dtype)
            self._observation[name][slots] = values


class MemoryJournal:
    """Rows in memory, in place of a journal on disk."""

    def __init__(self) -> None:
        self._pieces: list[Table] = []

    def read(self) -> list[Table]:
        """Return the pieces, in order."""
        return self._pieces

    def append(self, table: Table) -> None:
        """Add a piece."""
        self._pieces.append(table)


@dataclass(frozen=True)
class RowLayout:
    """The sizes of an episode's row.

    Attributes:
        num_decisions: T, decisions of the longest episode.
        chunk_size: C, actions of a decision.
        num_tokens: L, log-probs of a decision.
        num_draws: R, numbers that a decision records.
        token_dtype: Dtype of these numbers.
        has_observations: Whether the row has the observations before its decisions.
    """

    num_decisions: int
    chunk_size: int
    num_tokens: int
    num_draws: int
    token_dtype: np.dtype[Any]
    has_observations: bool

    @classmethod
    def of_chunks(cls, config: EmbodiedConfig, policy: ActingPolicy) -> "RowLayout":
        """Return the layout of episodes whose decisions are executed as chunks."""
        sizes = (config.num_decisions, config.policy.chunk_size, policy.num_tokens, policy.num_draws)
        return cls(*sizes, policy.token_dtype, has_observations=True)

    @classmethod
    def of_steps(cls, config: EmbodiedConfig) -> "RowLayout":
        """Return the layout of episodes with a decision for each step, an ensemble's action without tokens.

        It has no observations: one for each step, images included, would take too much memory.
        """
        action_dim = config.policy.action_dim
        return cls(config.env.max_steps, 1, action_dim, 0, np.dtype(np.float32), has_observations=False)


class EpisodeRows:
    """Columns of embodied rows while they are filled, one row per episode.

    Args:
        config: Run configuration.
        episodes: Episodes to play.
        layout: Sizes of a row.
    """

    def __init__(self, config: EmbodiedConfig, episodes: Sequence[Episode], layout: RowLayout) -> None:
        decided = (len(episodes), layout.num_decisions)
        shape, self._layout = (*decided, layout.num_tokens), layout
        self._env, self._max_steps = config.env, np.array([config.env.max_steps_of(e.env_task_id) for e in episodes])
        self._has_token = tokens_by_task(config)
        self.noise: np.ndarray | None = None
        self.columns: Columns = {
            "uid": np.array([e.uid for e in episodes], np.int64),
            "group_id": np.array([e.group_id for e in episodes], np.int64),
            "env_task_id": np.array([e.env_task_id for e in episodes], np.int64),
            "goal": np.array([e.goal for e in episodes], np.int64),
            "seed": np.zeros(len(episodes), np.int64),
            "policy_version": np.zeros(len(episodes), np.int64),
            "action_tokens": np.zeros((*decided, layout.num_draws), layout.token_dtype),
            "actions": np.zeros((*decided, self._layout.chunk_size, config.policy.action_dim), np.float32),
            "log_probs": np.zeros(shape, np.float32),
            "loss_mask": np.zeros(shape, bool),
            "num_steps": np.zeros(len(episodes), np.int64),
            "episode_return": np.zeros(len(episodes), np.float32),
            "success": np.zeros(len(episodes), bool),
            "terminated": np.zeros(len(episodes), bool),
            "truncated": np.zeros(len(episodes), bool),
        }

    def draw_noise(self, horizon: int, correlation: float) -> None:
        """Draw each row's noise from its own seed, independent of the other rows; see :func:`.chunk_uniforms`."""
        rows, *shape = self.columns["action_tokens"].shape
        self.noise = np.empty((rows, *shape), np.float32)  # empty if this rank has no episodes
        for noise, seed in zip(self.noise, self.columns["seed"].tolist(), strict=True):
            noise[:] = chunk_uniforms(derive_rng(seed), tuple(shape), horizon, correlation)

    def record_observation(self, rows: np.ndarray, t: np.ndarray, observation: Mapping[str, np.ndarray]) -> None:
        """Record the observations before a decision, if rows have them.

        Raises:
            ConfigError: An episode continues after ``env.max_steps``.
        """
        self._require_end(bool((t < self.columns["action_tokens"].shape[1]).all()))
        if not self._layout.has_observations:
            return
        for name, values in observation.items():
            if name not in self.columns:
                shape = self.columns["action_tokens"].shape[:2] + values.shape[1:]
                self.columns[name] = np.zeros(shape, values.dtype)
            self.columns[name][rows, t] = values

    def record_step(self, rows: np.ndarray, t: np.ndarray, decision: Decision, step: ChunkStep) -> None:
        """Record a decision and its step; log-probs of actions that were not executed stay outside the mask.

        So do those of the dimensions that pad the actions of a member.

        Raises:
            ConfigError: An episode continues after ``env.max_steps``, within its last chunk.
        """
        columns, size = self.columns, self._layout.chunk_size
        executed = np.arange(size) < step.num_steps[:, None]
        mask = np.repeat(executed, decision.log_probs.shape[1] // size, axis=1)  # ordered action by action
        actions = np.where(executed[:, :, None], decision.actions, 0)
        if self._has_token is not None:
            real = self._has_token[columns["env_task_id"][rows]]
            mask, actions = mask & np.tile(real, size), actions * real[:, None]
        columns["action_tokens"][rows, t] = decision.tokens  # all, as the policy may condition on tokens not executed
        columns["actions"][rows, t] = actions
        columns["log_probs"][rows, t] = np.where(mask, decision.log_probs, 0)
        columns["loss_mask"][rows, t] = mask
        columns["num_steps"][rows] += step.num_steps
        self._require_end(bool((columns["num_steps"][rows] <= self._max_steps[rows]).all()))
        columns["episode_return"][rows] += step.rewards.sum(axis=1)
        columns["success"][rows] |= step.infos["success"].any(axis=1)  # an episode may continue after success
        columns["terminated"][rows] = step.terminated
        columns["truncated"][rows] = step.truncated
        over = step.terminated | step.truncated
        for name, values in step.observation.items():
            if FINAL + name not in columns:
                columns[FINAL + name] = np.zeros((len(columns["uid"]), *values.shape[1:]), values.dtype)
            columns[FINAL + name][rows[over]] = values[over]

    def _require_end(self, ended: bool) -> None:
        """Raise :class:`ConfigError` unless the episodes ended after ``env.max_steps``, as they must."""
        if not ended:
            raise continues(self._env)


def tokens_by_task(config: EmbodiedConfig) -> np.ndarray | None:
    """Return True for the dimensions that the actions of a task have, bool ``[tasks, A]``; the others are padding.

    Returns:
        ``None`` without ``env.members``: no dimension is padding.
    """
    dims = config.policy.action_dims_by_member
    if dims is None:
        return None
    dims_by_name = dict(zip(config.env.members, dims, strict=True))
    by_task = np.array([dims_by_name[config.env.part_of(task)[0]] for task in config.env.tasks])
    return np.arange(config.policy.action_dim) < by_task[:, None]


def continues(env: EnvConfig) -> ConfigError:
    """Return the error that an episode goes on after ``env.max_steps``, where it must end."""
    return ConfigError(
        f"env.id={env.id}: an episode continues after env.max_steps={env.max_steps} steps; an environment without "
        "env.adapter receives max_steps and must truncate by itself"
    )


class SolvedGoals:
    """The goals of an evaluation that are reached before the policy acts. They say nothing about the policy.

    A goal counts if the info of its reset says so, or if its first step succeeds with the policy's action and also with
    a null action.

    Args:
        rows: Rows of the evaluation; they get the column ``solved_at_reset``.
    """

    SUCCEEDED_AT_ONCE, SOLVED = 1, 2

    def __init__(self, rows: EpisodeRows) -> None:
        self._columns = rows.columns
        self._columns["solved_at_reset"] = np.zeros(len(rows.columns["uid"]), np.int8)

    def record_start(self, rows: np.ndarray, solved: np.ndarray, succeeded: np.ndarray) -> None:
        """Record the starts of n episodes.

        Args:
            rows: Rows of the episodes, int ``[n]``.
            solved: Flags of resets whose info says that the goal is reached, bool ``[n]``.
            succeeded: Flags of first steps that succeeded, bool ``[n]``.
        """
        self._columns["solved_at_reset"][rows] = np.where(solved, self.SOLVED, succeeded * self.SUCCEEDED_AT_ONCE)

    def confirm(self, succeeds_without_action: Callable[[int, int], bool]) -> None:
        """Turn the column into flags.

        Args:
            succeeds_without_action: Function that plays one null action from a task's goal and returns True if it
                succeeds.
        """
        columns, found = self._columns, self._columns["solved_at_reset"]
        for row in np.flatnonzero(found == self.SUCCEEDED_AT_ONCE).tolist():
            if succeeds_without_action(int(columns["env_task_id"][row]), int(columns["goal"][row])):
                found[row] = self.SOLVED
        columns["solved_at_reset"] = found == self.SOLVED


class GroupJournal:
    """Writes the rows of each group to a journal once all its episodes have ended."""

    def __init__(self, rows: EpisodeRows, journal: Journal | MemoryJournal) -> None:
        self._columns, self._journal = rows.columns, journal
        self._open: dict[int, set[int]] = defaultdict(set)
        for row, group in enumerate(rows.columns["group_id"].tolist()):
            self._open[group].add(row)

    def restore(self) -> Set[int]:
        """Copy the journal's rows into the columns; return their positions."""
        done: set[int] = set()
        row_of = {uid: row for row, uid in enumerate(self._columns["uid"].tolist())}
        for table in self._journal.read():
            piece = cast(Columns, table)
            rows = [row_of[uid] for uid in piece["uid"].tolist()]
            for name, values in piece.items():
                if name not in self._columns:
                    self._columns[name] = np.zeros((len(row_of), *values.shape[1:]), values.dtype)
                self._columns[name][rows] = values
            done.update(rows)
        return done

    def end(self, rows: np.ndarray) -> None:
        """Mark episodes as ended; write the groups that are now complete."""
        for row in rows.tolist():
            group = int(self._columns["group_id"][row])
            self._open[group].discard(row)
            if not self._open[group]:
                members = np.flatnonzero(self._columns["group_id"] == group)
                self._journal.append({name: values[members] for name, values in self._columns.items()})


def padded(values: np.ndarray, length: int) -> np.ndarray:
    """Return the values padded with zeros to ``length``."""
    return np.concatenate([values, np.zeros((length - len(values), *values.shape[1:]), values.dtype)])
