"""Many environments stepped together, in this process or in a few others.

Waking a process takes about as long as a MuJoCo step. So environments are split among a few processes, usually one per
core. Each process steps its environments one after the other, a whole action chunk each, and receives one message per
chunk. Observations and actions pass through shared memory.
"""

import functools
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import cloudpickle  # type: ignore[import-untyped]
import gymnasium as gym
import numpy as np
import numpy.typing as npt

from embodyflow.errors import ConfigError
from embodyflow.policies.observations import observation_fields
from embodyflow.process.tracing import span, trace_file
from embodyflow.simulation.environment_output import OutputLimit
from embodyflow.simulation.episode_history import EpisodeHistory, EpisodeRecorder
from embodyflow.simulation.supervision import (
    REPLAY_ENDED_EARLY,
    EnvQuarantinedError,
    EpisodesLostError,
    SupervisedShard,
    Supervision,
)
from embodyflow.simulation.vector.shards import LocalShard, ProcessShard, Shard
from embodyflow.simulation.vector.worker import Array, BufferLayout, Buffers, EnvError, EnvFn

__all__ = ["ChunkStep", "EnvError", "EnvQuarantinedError", "EpisodesLostError", "Supervision", "VectorEnv"]

T = TypeVar("T")

CLOSE_SECONDS = 5.0
"""Time limit for closing the environments; processes are then killed."""


@dataclass(frozen=True)
class ChunkStep:
    """Result of one action chunk of C actions in each of n environments.

    Attributes:
        observation: Last observation of each environment by key, ``[n, ...]`` in the space's dtype. The key of a Box
            observation space is ``"state"``.
        rewards: Reward of each executed action, float32 ``[n, C]``; 0 for actions after the end.
        terminated: Flags of termination, bool ``[n]``.
        truncated: Flags of truncation, bool ``[n]``.
        num_steps: Number of executed actions, int64 ``[n]``, 1 to C. It is 0 for a lane of a batch that used the call
            to reset itself (:mod:`embodyflow.simulation.batched`); such a call is no transition.
        infos: Values of the caller's ``info_keys`` after each action, float64 ``[n, C]``; 0 for actions after the end.
    """

    observation: dict[str, Array]
    rewards: npt.NDArray[np.float32]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    num_steps: npt.NDArray[np.int64]
    infos: dict[str, npt.NDArray[np.float64]]


@dataclass(frozen=True)
class _Pending:
    """A call in flight: its environments and the shards that will answer."""

    method: str
    rows: Array
    shards: list[SupervisedShard]


class VectorEnv:
    """Environments with explicit resets (Gymnasium's autoreset mode DISABLED), stepped one chunk at a time.

    An environment stops within a chunk when it terminates or truncates; reset it before the next step. After an error,
    reset the environments of the failed call.

    A process that dies, hangs or returns NaN or inf is restarted. Episodes that were reset with a seed are replayed and
    continue with bit-identical results (:mod:`embodyflow.simulation.supervision`). So is one that exceeds the memory
    that ``supervision`` allows.

    Args:
        env_fns: Functions without arguments, one per environment; cloudpickled if a process calls them.
        num_workers: Number of processes that step the environments, environment i in process ``i % num_workers``. 0
            steps them in the calling process.
        caller_steps: True if the calling process is the last of the ``num_workers``, which saves a message and an idle
            core. Use it for environments that do not crash and a caller with nothing else to do.
        chunk_size: C, the number of actions per call and environment.
        info_keys: Keys of ``info`` to keep; each must be a finite number in the info of every step.
        names: Names of the environments for errors, shown beside their indices.
        supervision: Fault limits and counters, which several vector environments may share.

    Attributes:
        resets_itself: True if automatic resets begin episodes, which then have no seeds of their own.
        skips_resets: True if such a reset takes a step that is no transition, with ``num_steps`` 0.

    Raises:
        ConfigError: A size is out of range, environments have different shapes, or a space is not an array.
        EnvError: An ``env_fn`` raised.
    """

    resets_itself: bool = False
    skips_resets: bool = False

    def __init__(
        self,
        env_fns: Sequence[EnvFn],
        *,
        chunk_size: int,
        num_workers: int = 0,
        caller_steps: bool = False,
        info_keys: Sequence[str] = (),
        names: Sequence[str] | None = None,
        supervision: Supervision | None = None,
    ) -> None:
        if not env_fns:
            raise ConfigError("env_fns: must not be empty")
        if chunk_size < 1:
            raise ConfigError(f"chunk_size: must be at least 1, is {chunk_size}")
        if not 0 <= num_workers <= len(env_fns):
            raise ConfigError(f"num_workers: must be in 0..{len(env_fns)} (num_envs), is {num_workers}")
        self._open(
            len(env_fns),
            chunk_size,
            functools.partial(self._start, num_workers, num_workers - caller_steps),
            functools.partial(self._build, env_fns),
            tuple(info_keys),
            [""] * len(env_fns) if names is None else names,
            supervision,
        )
        self._has_processes = num_workers > caller_steps

    def _open(
        self,
        num_envs: int,
        chunk_size: int,
        start: Callable[[], object],
        build: Callable[[], tuple[gym.Space[Any], gym.Space[Any]]],
        info_keys: tuple[str, ...],
        names: Sequence[str],
        supervision: Supervision | None,
    ) -> None:
        """Start the shards by ``start``, then build the environments by ``build``, which returns a lane's spaces."""
        self.num_envs = num_envs
        self.chunk_size = chunk_size
        self.supervision = supervision or Supervision()
        self._shards: list[SupervisedShard] = []
        self._pending: deque[_Pending] = deque()
        self._has_processes = False
        self._in_flight = np.zeros(self.num_envs, np.bool_)
        self._all = np.arange(num_envs)
        self._all.flags.writeable = False
        self._memory = os.memfd_create("embodyflow-vector-env")
        try:
            start()
            self._shares_of_all = self._shares(self._all)
            self._record()
            self.observation_space, self.action_space = build()
            self._buffers = self._share(info_keys)
            self._recorder = self._start_recording(names)
        except BaseException:
            self.close()
            raise

    def _start(self, num_workers: int, num_processes: int) -> None:
        num_shards, busy_waits = max(num_workers, 1), num_processes < len(os.sched_getaffinity(0))
        for rank in range(num_shards):  # the caller's shard comes last, so that the others step meanwhile
            start: Callable[[], Shard]
            if rank < num_processes:
                output = OutputLimit(f"environment process {rank}")
                start = functools.partial(ProcessShard, rank, busy_waits, self.supervision.max_bytes, output)
            else:
                start = functools.partial(LocalShard, OutputLimit(f"the environments of process {os.getpid()}"))
            self._shards.append(SupervisedShard(start, range(rank, self.num_envs, num_shards), self.supervision))

    def _record(self) -> None:
        """Record the environment processes in the run's trace, if this process records."""
        if (file := trace_file()) is None:
            return
        for number, shard in enumerate(self._shards):
            shard.prepare("record", str(file.folder), f"{file.process} environments {number}")
        _gather(shard.wait_prepared for shard in self._shards)

    def _build(self, env_fns: Sequence[EnvFn]) -> tuple[gym.Space[Any], gym.Space[Any]]:
        for shard in self._shards:
            shard.prepare("build", cloudpickle.dumps({index: env_fns[index] for index in shard.indices}))
        spaces = [pair for pairs in _gather(shard.wait_prepared for shard in self._shards) for pair in pairs]
        expected = [(observation_fields(obs), action.shape, action.dtype) for obs, action in spaces]
        for other in expected:
            if other != expected[0]:
                raise ConfigError(f"env_fns: environments must have equal shapes, got {expected[0]} and {other}")
        return spaces[0]

    def _share(self, info_keys: tuple[str, ...]) -> Buffers:
        """Map anonymous memory, which the kernel frees however the processes end."""
        layout = BufferLayout(self.num_envs, self.chunk_size, info_keys, self.observation_space, self.action_space)
        path = f"/proc/{os.getpid()}/fd/{self._memory}"
        buffers = Buffers.map(path, layout)
        for shard in self._shards:
            shard.prepare("attach", path, layout)
        _gather(shard.wait_prepared for shard in self._shards)
        return buffers

    def _start_recording(self, names: Sequence[str]) -> EpisodeRecorder:
        actions = self._buffers.actions
        labels = [f"environment {i}" + (f" ({name})" if name else "") for i, name in enumerate(names)]
        recorder = EpisodeRecorder(labels, actions.shape[1:], actions.dtype)
        for shard in self._shards:
            shard.use(recorder, self._buffers)
        return recorder

    @property
    def halves(self) -> list[list[int]]:
        """Two halves of the environments: one steps while the caller chooses actions for the other.

        Without processes there is a single part with all environments.
        """
        first = self.num_envs // 2 if self._has_processes else 0
        return [part for part in (list(range(first)), list(range(first, self.num_envs))) if part]

    def reset(
        self,
        indices: Sequence[int] | None = None,
        seeds: Sequence[int | None] | None = None,
        options: Sequence[dict[str, Any] | None] | None = None,
    ) -> dict[str, Array]:
        """Reset environments: call :meth:`reset_async`, then :meth:`reset_wait`."""
        self._require_idle("reset")
        self.reset_async(indices, seeds, options)
        return self.reset_wait()

    def reset_async(
        self,
        indices: Sequence[int] | None = None,
        seeds: Sequence[int | None] | None = None,
        options: Sequence[dict[str, Any] | None] | None = None,
    ) -> None:
        """Start resetting environments; calls on other environments may be in flight.

        Args:
            indices: The n environments; None means all.
            seeds: Seeds, one per environment; None leaves the generators unchanged.
            options: Values of Gymnasium's ``reset(options=...)``, one per environment.

        Raises:
            ValueError: An environment is in flight, or the number of seeds or options is not n.
        """
        rows = self._rows(indices)
        seeds = [None] * len(rows) if seeds is None else seeds
        options = [None] * len(rows) if options is None else options
        if not len(seeds) == len(options) == len(rows):
            raise ValueError(f"{len(rows)} environments, but {len(seeds)} seeds and {len(options)} options")
        if self._in_flight[rows].any():
            raise ValueError(f"environments {rows[self._in_flight[rows]].tolist()} are in flight: wait for them first")
        self._recorder.begin(rows, seeds, options)
        self._begin("reset", rows, seeds, options)

    def reset_wait(self) -> dict[str, Array]:
        """Wait for the oldest call, which must be a ``reset_async``; return the first observations.

        Returns:
            First observations ``[n, ...]`` by key, rows in the order of the call's ``indices``.

        Raises:
            EnvError: An environment raised, or repeatedly returned NaN or inf.
            EnvQuarantinedError: An environment kills, hangs or overfills its process at each attempt of this reset.
            EpisodesLostError: A process ended, and with it episodes that were reset without a seed.
            InfrastructureError: Processes were restarted too often.
            RuntimeError: The oldest call is not a ``reset_async``.
        """
        rows = self._end("reset")
        self._recorder.open[rows] = True
        return self._observation(rows)

    def solved(self, indices: Sequence[int]) -> npt.NDArray[np.bool_]:
        """Return True for the environments whose last reset had a true ``info["success"]``, bool ``[n]``."""
        return self._buffers.solved[self._rows(indices)]

    def histories(self, indices: Sequence[int] | None = None) -> list[EpisodeHistory]:
        """Return the histories of n running episodes, from which :meth:`replay` restores them.

        Raises:
            ValueError: An environment is finished, or was reset without a seed.
        """
        self._require_idle("histories")
        rows = self._rows(indices)
        self._require_running(rows)
        return [self._recorder.history(row) for row in rows.tolist()]

    def replay(self, histories: Sequence[EpisodeHistory], indices: Sequence[int] | None = None) -> dict[str, Array]:
        """Restore n episodes in n environments: reset them by seed and execute the recorded actions.

        Args:
            histories: Histories of n episodes, played in chunks of this ``chunk_size`` by environments built alike.
            indices: The n environments; None means all.

        Returns:
            Current observations ``[n, ...]`` by key.

        Raises:
            ValueError: An episode was not played in chunks of this size.
            EnvError: An environment raised, or a replay ended early because the seed does not determine the episode.
            InfrastructureError: As in :meth:`reset`.
        """
        rows = self._rows(indices)
        if len(histories) != len(rows):
            raise ValueError(f"{len(rows)} environments, but {len(histories)} histories")
        for each in histories:
            if len(each.actions) % self.chunk_size:
                raise ValueError(
                    f"histories: {len(each.actions)} actions must be a multiple of chunk_size={self.chunk_size}"
                )
        self._replay(histories, rows)
        return self._observation(rows)

    def _replay(self, histories: Sequence[EpisodeHistory], rows: Array) -> None:
        self.reset(rows.tolist(), [each.seed for each in histories], [each.options for each in histories])
        num_chunks = np.array([len(each.actions) // self.chunk_size for each in histories])
        for t in range(0, max(num_chunks, default=0)):
            chosen = np.flatnonzero(num_chunks > t)
            first, last = t * self.chunk_size, (t + 1) * self.chunk_size
            step = self.step(np.stack([histories[k].actions[first:last] for k in chosen]), rows[chosen].tolist())
            for row in rows[chosen][step.terminated | step.truncated].tolist():
                raise EnvError(row, REPLAY_ENDED_EARLY)

    def step(self, actions: npt.ArrayLike, indices: Sequence[int] | None = None) -> ChunkStep:
        """Execute one action chunk in each of n environments: call :meth:`step_async`, then :meth:`step_wait`."""
        self._require_idle("step")
        self.step_async(actions, indices)
        return self.step_wait()

    def step_async(self, actions: npt.ArrayLike, indices: Sequence[int] | None = None) -> None:
        """Start action chunks; calls on other environments may be in flight.

        Environments in other processes step while the caller continues, for example with the actions of the other
        half. Environments in the calling process have finished when this method returns.

        Args:
            actions: Actions ``[n, C, *action_shape]``, cast to the action space's dtype.
            indices: The n environments, each at most once; None means all.

        Raises:
            ValueError: The shape is wrong, or an environment is finished, in flight or was never reset.
        """
        rows = self._rows(indices)
        self._require_running(rows)
        actions = np.asarray(actions)
        expected = (len(rows), *self._buffers.actions.shape[1:])
        if actions.shape != expected:
            raise ValueError(f"actions: must have shape {expected}, have {actions.shape}")
        self._buffers.actions[self._places(rows)] = actions
        self._recorder.stage(rows, actions)
        self._begin("step", rows)

    def step_wait(self) -> ChunkStep:
        """Wait for the oldest call, which must be a ``step_async``; return its result, rows ordered as its ``indices``.

        After an error, reset the environments of the call.

        Raises:
            EnvError: An environment raised, or repeatedly returned NaN or inf.
            EnvQuarantinedError: An environment kills, hangs or overfills its process at each attempt of this chunk.
            EpisodesLostError: A process ended, and with it episodes that were reset without a seed.
            InfrastructureError: Processes were restarted too often.
            RuntimeError: The oldest call is not a ``step_async``.
        """
        rows = self._end("step")
        buffers = self._buffers
        step = ChunkStep(
            observation=self._observation(rows),
            rewards=self._read(buffers.rewards, rows),
            terminated=self._read(buffers.terminated, rows),
            truncated=self._read(buffers.truncated, rows),
            num_steps=self._read(buffers.num_steps, rows),
            infos={key: self._read(column, rows) for key, column in buffers.infos.items()},
        )
        self._recorder.commit(rows, self._goes_on(step))
        return step

    def _goes_on(self, step: ChunkStep) -> npt.NDArray[np.bool_]:
        """Return the flags of environments that may step again without a reset, bool ``[n]``."""
        return ~(step.terminated | step.truncated)

    def abandon(self) -> None:
        """Abandon all episodes and calls in flight, for example after an exception; reset the environments next."""
        self._recorder.open[:] = False
        self._in_flight[:] = False
        self._pending.clear()
        for shard in self._shards:
            shard.abandon()

    def close(self) -> None:
        """Close the environments and end the processes, by force after ``CLOSE_SECONDS``; a second call does nothing.

        Raises:
            EnvError: An environment failed to close. All processes have ended nonetheless.
        """
        shards, self._shards = self._shards, []
        self._pending.clear()
        self._in_flight[:] = False
        if shards:
            os.close(self._memory)
        deadline = time.monotonic() + CLOSE_SECONDS
        for shard in shards:
            shard.close()
        errors = [error for shard in shards if (error := shard.join(deadline)) is not None]
        if errors:
            raise errors[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _require_idle(self, method: str) -> None:
        if self._pending:
            pending = self._pending[0].method
            raise RuntimeError(f"{method} while a {pending}_async is in flight: call {pending}_wait first")

    def _begin(self, method: str, rows: Array, *columns: Sequence[Any]) -> None:
        self._pending.append(_Pending(method, rows, self._scatter(rows, method, *columns)))
        self._in_flight[self._places(rows)] = True

    def _end(self, method: str) -> Array:
        """Wait for the oldest call and return its environments; mark them finished if it fails."""
        if not self._pending or self._pending[0].method != method:
            raise RuntimeError(f"{method}_wait without a {method}_async")
        call = self._pending.popleft()
        self._in_flight[self._places(call.rows)] = False
        try:
            with span(f"wait for {method}", "wait"):
                _gather(shard.result for shard in call.shards)
        except BaseException:
            self._recorder.open[call.rows] = False
            raise
        return call.rows

    def _require_running(self, rows: Array) -> None:
        running = self._recorder.open[rows] > self._in_flight[rows]  # open and not in flight
        if not running.all():
            stopped = rows[~running].tolist()
            raise ValueError(f"environments {stopped} are finished or in flight: reset them or wait for them first")

    def _observation(self, rows: Array) -> dict[str, Array]:
        return {key: self._read(column, rows) for key, column in self._buffers.observation.items()}

    def _places(self, rows: Array) -> slice | Array:
        """Return rows of the buffers: a slice, which NumPy reads and writes faster, for all environments."""
        return slice(None) if rows is self._all else rows

    def _read(self, column: Array, rows: Array) -> Array:
        return column.copy() if rows is self._all else column[rows]

    def _rows(self, indices: Sequence[int] | None) -> npt.NDArray[np.int64]:
        if indices is None:
            return self._all
        rows = np.asarray(indices, np.int64)
        if len(set(rows.tolist())) != len(rows) or not ((rows >= 0) & (rows < self.num_envs)).all():
            raise ValueError(f"indices: must be distinct and in 0..{self.num_envs - 1}, are {rows.tolist()}")
        return rows

    def _scatter(self, rows: Array, method: str, *columns: Sequence[Any]) -> list[SupervisedShard]:
        """Send each shard its rows with their entries of ``columns``; return the shards that will answer."""
        if not self._shards:
            raise RuntimeError("the vector environment is closed")
        shares = self._shares_of_all if rows is self._all else self._shares(rows)
        for shard, places, indices in shares:
            shard.submit(method, indices, *([column[k] for k in places] for column in columns))
        return [shard for shard, *_ in shares]

    def _shares(self, rows: Array) -> list[tuple[SupervisedShard, list[int], list[int]]]:
        """Return the shards that step some of the rows, each with the places of its rows and the rows themselves."""
        ranks = rows % len(self._shards)
        owned = [(shard, np.flatnonzero(ranks == rank)) for rank, shard in enumerate(self._shards)]
        return [(shard, places.tolist(), rows[places].tolist()) for shard, places in owned if places.size]


def _gather(answers: Iterable[Callable[[], T]]) -> list[T]:
    """Wait for every answer, then raise the first error, so that no answer is left for a later call."""
    results, errors = [], []
    for answer in answers:
        try:
            results.append(answer())
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return results
