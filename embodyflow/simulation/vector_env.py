"""Many environments stepped together, in this process or in a few others.

Simulation is cheap and messages are not: a MuJoCo step takes some 40 µs, waking a process takes as long.
So environments are split between few processes (one per core); each steps its share one after the other, a
whole action chunk per environment, and gets one message per chunk. Observations and actions pass through
shared memory.
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
from embodyflow.simulation.episode_history import EpisodeHistory, EpisodeRecorder
from embodyflow.simulation.supervision import (
    ENDED,
    EnvQuarantinedError,
    EpisodesLostError,
    SupervisedShard,
    Supervision,
)
from embodyflow.simulation.vector_env_shards import InProcess, WorkerProcess
from embodyflow.simulation.vector_env_worker import Array, BufferLayout, Buffers, EnvError, EnvFn

__all__ = ["ChunkStep", "EnvError", "EnvQuarantinedError", "EpisodesLostError", "Supervision", "VectorEnv"]

T = TypeVar("T")

CLOSE_SECONDS = 5.0
"""How long the environments have for closing."""


@dataclass(frozen=True)
class ChunkStep:
    """What executing one action chunk of C actions in each of n environments gave.

    Attributes:
        observation: key to the last observation of each environment, ``[n, ...]`` in the space's dtype; the
            key of a Box observation space is ``"state"``.
        rewards: float32 ``[n, C]``, reward of each executed action; 0 for actions after the end.
        terminated: bool ``[n]``.
        truncated: bool ``[n]``.
        num_steps: int64 ``[n]``, actions executed, 1..C.
        infos: float64 ``[n, C]`` for each of the caller's ``info_keys``, after each action; 0 for those after the end.
    """

    observation: dict[str, Array]
    rewards: npt.NDArray[np.float32]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    num_steps: npt.NDArray[np.int64]
    infos: dict[str, npt.NDArray[np.float64]]


@dataclass(frozen=True)
class _Pending:
    """A call that is under way: its environments, and the shards that will answer."""

    method: str
    rows: Array
    shards: list[SupervisedShard]


class VectorEnv:
    """Environments with explicit resets (Gymnasium's autoreset mode DISABLED), stepped a chunk at a time.

    An environment stops within a chunk when it is terminated or truncated, and must then be reset before it
    is stepped again. The same holds after an error: the environments of that call must be reset.

    A process that dies or hangs, or gives numbers that are none, is started again, and the episodes that were reset
    with a seed go on as if nothing had been (:mod:`embodyflow.simulation.supervision`).

    Args:
        env_fns: one function per environment, without arguments; cloudpickled when a process is to call it.
        num_workers: processes that step the environments, environment i in process ``i % num_workers``; 0
            steps them in the calling process.
        caller_steps: the last of the ``num_workers`` is the calling process: one message less and no idle core,
            for environments that are trusted not to crash and a caller with nothing else to do meanwhile.
        chunk_size: C, actions per call and environment.
        info_keys: keys of ``info`` to keep; each must be a finite number in the info of every step.
        names: what each environment is called in errors, beside its index.
        supervision: limits and counts, which several vector environments may share.

    Raises:
        ConfigError: a size out of range, environments with different shapes, or a space that is no array.
        EnvError: an ``env_fn`` raised.
    """

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
        self.num_envs = len(env_fns)
        self.chunk_size = chunk_size
        self.supervision = supervision or Supervision()
        self._shards: list[SupervisedShard] = []
        self._pending: deque[_Pending] = deque()
        self._has_processes = num_workers > caller_steps
        self._under_way = np.zeros(self.num_envs, np.bool_)
        self._memory = os.memfd_create("embodyflow-vector-env")
        try:
            self._start(num_workers, num_workers - caller_steps)
            self.observation_space, self.action_space = self._build(env_fns)
            self._buffers = self._share(tuple(info_keys))
            self._recorder = self._watch([""] * self.num_envs if names is None else names)
        except BaseException:
            self.close()
            raise

    def _start(self, num_workers: int, num_processes: int) -> None:
        num_shards, stays_awake = max(num_workers, 1), num_processes < len(os.sched_getaffinity(0))
        for rank in range(num_shards):  # the caller last: the others step meanwhile
            start = functools.partial(WorkerProcess, rank, stays_awake) if rank < num_processes else InProcess
            self._shards.append(SupervisedShard(start, range(rank, self.num_envs, num_shards), self.supervision))

    def _build(self, env_fns: Sequence[EnvFn]) -> tuple[gym.Space[Any], gym.Space[Any]]:
        for shard in self._shards:
            shard.prepare("build", cloudpickle.dumps({index: env_fns[index] for index in shard.indices}))
        spaces = [pair for pairs in _gather(shard.prepared for shard in self._shards) for pair in pairs]
        expected = [(observation_fields(obs), action.shape, action.dtype) for obs, action in spaces]
        for other in expected:
            if other != expected[0]:
                raise ConfigError(f"env_fns: environments must have equal shapes, got {expected[0]} and {other}")
        return spaces[0]

    def _share(self, info_keys: tuple[str, ...]) -> Buffers:
        """Map memory that has no name: nothing is left of it however the processes end."""
        layout = BufferLayout(self.num_envs, self.chunk_size, info_keys, self.observation_space, self.action_space)
        path = f"/proc/{os.getpid()}/fd/{self._memory}"
        buffers = Buffers.map(path, layout)
        for shard in self._shards:
            shard.prepare("attach", path, layout)
        _gather(shard.prepared for shard in self._shards)
        return buffers

    def _watch(self, names: Sequence[str]) -> EpisodeRecorder:
        actions = self._buffers.actions
        called = [f"environment {i}" + (f" ({name})" if name else "") for i, name in enumerate(names)]
        recorder = EpisodeRecorder(called, actions.shape[1:], actions.dtype)
        for shard in self._shards:
            shard.watch(recorder, self._buffers)
        return recorder

    @property
    def halves(self) -> list[list[int]]:
        """Environments that may take turns: one half steps while the caller decides for the other.

        All in one where the caller's own process steps them.
        """
        first = self.num_envs // 2 if self._has_processes else 0
        return [part for part in (list(range(first)), list(range(first, self.num_envs))) if part]

    def reset(
        self,
        indices: Sequence[int] | None = None,
        seeds: Sequence[int | None] | None = None,
        options: Sequence[dict[str, Any] | None] | None = None,
    ) -> dict[str, Array]:
        """Reset environments: ``reset_async`` and ``reset_wait``."""
        self._require_idle("reset")
        self.reset_async(indices, seeds, options)
        return self.reset_wait()

    def reset_async(
        self,
        indices: Sequence[int] | None = None,
        seeds: Sequence[int | None] | None = None,
        options: Sequence[dict[str, Any] | None] | None = None,
    ) -> None:
        """Start to reset environments; other calls with other environments may be under way.

        Args:
            indices: the n environments; None is all.
            seeds: n seeds, one per environment; None leaves their generators as they are.
            options: n values of Gymnasium's ``reset(options=...)``.

        Raises:
            ValueError: an environment is under way, or there are not as many seeds or options as environments.
        """
        rows = self._rows(indices)
        seeds = [None] * len(rows) if seeds is None else seeds
        options = [None] * len(rows) if options is None else options
        if not len(seeds) == len(options) == len(rows):
            raise ValueError(f"{len(rows)} environments, but {len(seeds)} seeds and {len(options)} options")
        if self._under_way[rows].any():
            raise ValueError(f"environments {rows[self._under_way[rows]].tolist()} are under way: wait first")
        self._recorder.begin(rows, seeds, options)
        self._begin("reset", rows, seeds, options)

    def reset_wait(self) -> dict[str, Array]:
        """Wait for the oldest call, a ``reset_async``; return the first observations.

        Returns:
            Key to first observation ``[n, ...]``, rows in the order of the call's ``indices``.

        Raises:
            EnvError: an environment raised, or gives numbers that are none.
            EnvQuarantinedError: an environment kills or hangs its process whenever it is reset so.
            EpisodesLostError: a process is gone, and with it episodes that were reset without a seed.
            InfrastructureError: processes were started again too often.
            RuntimeError: the oldest call is no ``reset_async``.
        """
        rows = self._end("reset")
        self._recorder.open[rows] = True
        return self._observation(rows)

    def histories(self, indices: Sequence[int] | None = None) -> list[EpisodeHistory]:
        """Return the running episodes of n environments, enough for :meth:`replay` to have them again.

        Raises:
            ValueError: an environment is finished, or was reset without a seed.
        """
        self._require_idle("histories")
        rows = self._rows(indices)
        self._require_running(rows)
        return [self._recorder.history(row) for row in rows.tolist()]

    def replay(self, histories: Sequence[EpisodeHistory], indices: Sequence[int] | None = None) -> dict[str, Array]:
        """Bring n environments to where these episodes were: reset by seed, execute the actions.

        Args:
            histories: n of them, played in chunks of this ``chunk_size``; of whichever environments are built alike.
            indices: the n environments; None is all.

        Returns:
            Key to the observation now ``[n, ...]``.

        Raises:
            ValueError: an episode was not played in such chunks.
            EnvError: an environment raised, or its episode ends before the history does: its seed does not say all.
            InfrastructureError: as by :meth:`reset`.
        """
        rows = self._rows(indices)
        if len(histories) != len(rows):
            raise ValueError(f"{len(rows)} environments, but {len(histories)} histories")
        for each in histories:
            if len(each.actions) % self.chunk_size:
                raise ValueError(f"an episode of {len(each.actions)} actions is none of chunks of {self.chunk_size}")
        self.reset(rows.tolist(), [each.seed for each in histories], [each.options for each in histories])
        num_chunks = np.array([len(each.actions) // self.chunk_size for each in histories])
        for t in range(0, max(num_chunks, default=0)):
            chosen = np.flatnonzero(num_chunks > t)
            first, last = t * self.chunk_size, (t + 1) * self.chunk_size
            step = self.step(np.stack([histories[k].actions[first:last] for k in chosen]), rows[chosen].tolist())
            for row in rows[chosen][step.terminated | step.truncated].tolist():
                raise EnvError(row, ENDED)
        return self._observation(rows)

    def step(self, actions: npt.ArrayLike, indices: Sequence[int] | None = None) -> ChunkStep:
        """Execute one action chunk in each of n environments: ``step_async`` and ``step_wait``."""
        self._require_idle("step")
        self.step_async(actions, indices)
        return self.step_wait()

    def step_async(self, actions: npt.ArrayLike, indices: Sequence[int] | None = None) -> None:
        """Start action chunks; other calls with other environments may be under way.

        In a process of its own an environment steps while the caller does something else, such as computing
        the actions of the other half. The calling process's share is done before the call returns.

        Args:
            actions: ``[n, C, *action_shape]``, cast to the action space's dtype.
            indices: the n environments, each at most once; None is all.

        Raises:
            ValueError: wrong shape, or an environment that is finished, under way or was never reset.
        """
        rows = self._rows(indices)
        self._require_running(rows)
        actions = np.asarray(actions)
        expected = (len(rows), *self._buffers.actions.shape[1:])
        if actions.shape != expected:
            raise ValueError(f"actions: must have shape {expected}, have {actions.shape}")
        self._buffers.actions[rows] = actions
        self._recorder.order(rows, actions)
        self._begin("step", rows)

    def step_wait(self) -> ChunkStep:
        """Wait for the oldest call, a ``step_async``, and return its result, rows in the order of its ``indices``.

        Raises:
            EnvError: an environment raised, or gives numbers that are none; those of this call must be reset.
            EnvQuarantinedError: an environment kills or hangs its process whenever it executes the chunk; as above.
            EpisodesLostError: a process is gone, and with it episodes that were reset without a seed.
            InfrastructureError: processes were started again too often.
            RuntimeError: the oldest call is no ``step_async``.
        """
        rows = self._end("step")
        buffers = self._buffers
        step = ChunkStep(
            observation=self._observation(rows),
            rewards=buffers.rewards[rows],
            terminated=buffers.terminated[rows],
            truncated=buffers.truncated[rows],
            num_steps=buffers.num_steps[rows],
            infos={key: column[rows] for key, column in buffers.infos.items()},
        )
        self._recorder.executed(rows, ~(step.terminated | step.truncated))
        return step

    def abandon(self) -> None:
        """Give up all episodes, and what an exception left under way; every environment must be reset."""
        self._recorder.open[:] = False
        self._under_way[:] = False
        self._pending.clear()
        for shard in self._shards:
            shard.abandon()

    def close(self) -> None:
        """Close the environments and end the processes, by force after some seconds; again, it does nothing.

        Raises:
            EnvError: an environment could not be closed; every process is ended all the same.
        """
        shards, self._shards = self._shards, []
        self._pending.clear()
        self._under_way[:] = False
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
            under_way = self._pending[0].method
            raise RuntimeError(f"{method} while a {under_way}_async is under way: call {under_way}_wait first")

    def _begin(self, method: str, rows: Array, *columns: Sequence[Any]) -> None:
        self._pending.append(_Pending(method, rows, self._scatter(rows, method, *columns)))
        self._under_way[rows] = True

    def _end(self, method: str) -> Array:
        """Wait for the oldest call; return its environments, which are finished if it fails."""
        if not self._pending or self._pending[0].method != method:
            raise RuntimeError(f"{method}_wait without a {method}_async")
        call = self._pending.popleft()
        self._under_way[call.rows] = False
        try:
            _gather(shard.result for shard in call.shards)
        except BaseException:
            self._recorder.open[call.rows] = False
            raise
        return call.rows

    def _require_running(self, rows: Array) -> None:
        running = self._recorder.open[rows] & ~self._under_way[rows]
        if not running.all():
            stopped = rows[~running].tolist()
            raise ValueError(f"environments {stopped} are finished or under way: reset them or wait first")

    def _observation(self, rows: Array) -> dict[str, Array]:
        return {key: column[rows] for key, column in self._buffers.observation.items()}

    def _rows(self, indices: Sequence[int] | None) -> npt.NDArray[np.int64]:
        if indices is None:
            return np.arange(self.num_envs)
        rows = np.asarray(indices, np.int64)
        if len(set(rows.tolist())) != len(rows) or not ((rows >= 0) & (rows < self.num_envs)).all():
            raise ValueError(f"indices: must be distinct and in 0..{self.num_envs - 1}, are {rows.tolist()}")
        return rows

    def _scatter(self, rows: Array, method: str, *columns: Sequence[Any]) -> list[SupervisedShard]:
        """Send each shard its rows, with their entries of ``columns``; return the shards that will answer."""
        if not self._shards:
            raise RuntimeError("the vector environment is closed")
        busy = []
        for rank, shard in enumerate(self._shards):
            places = np.flatnonzero(rows % len(self._shards) == rank).tolist()
            if places:
                shard.submit(method, rows[places].tolist(), *([column[k] for k in places] for column in columns))
                busy.append(shard)
        return busy


def _gather(answers: Iterable[Callable[[], T]]) -> list[T]:
    """Wait for every answer, then raise the first error: no answer is left for a later call."""
    results, errors = [], []
    for answer in answers:
        try:
            results.append(answer())
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return results
