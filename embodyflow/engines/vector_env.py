"""Many environments stepped together, in this process or in a few others.

Simulation is cheap and messages are not: a MuJoCo step takes some 40 µs, waking a process takes as long.
So environments are split between few processes (one per core); each steps its share one after the other, a
whole action chunk per environment, and gets one message per chunk. Observations and actions pass through
shared memory.
"""

import contextlib
import os
import select
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import cloudpickle  # type: ignore[import-untyped]
import gymnasium as gym
import numpy as np
import numpy.typing as npt

from embodyflow.child_process import receive, send, start_child
from embodyflow.engines.episode_history import EpisodeHistory, EpisodeRecorder
from embodyflow.engines.vector_env_worker import (
    Array,
    BufferLayout,
    Buffers,
    EnvError,
    EnvFn,
    EnvGroup,
    observation_fields,
)
from embodyflow.errors import ConfigError

__all__ = ["ChunkStep", "EnvError", "EnvProcessDiedError", "VectorEnv"]

CLOSE_SECONDS = 5.0
"""How long the environments have for closing."""


class EnvProcessDiedError(RuntimeError):
    """A process with environments ended by itself: killed, out of memory, crashed in native code."""


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
        infos: float64 ``[n]`` for each of the caller's ``info_keys``, as of the last executed step.
    """

    observation: dict[str, Array]
    rewards: npt.NDArray[np.float32]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    num_steps: npt.NDArray[np.int64]
    infos: dict[str, npt.NDArray[np.float64]]


class VectorEnv:
    """Environments with explicit resets (Gymnasium's autoreset mode DISABLED), stepped a chunk at a time.

    An environment stops within a chunk when it is terminated or truncated, and must then be reset before it
    is stepped again. The same holds after an error: the environments of that call must be reset.

    Args:
        env_fns: one function per environment, without arguments; cloudpickled when a process is to call it.
        num_workers: processes that step the environments, environment i in process ``i % num_workers``; 0
            steps them in the calling process.
        caller_steps: the last of the ``num_workers`` is the calling process: one message less and no idle core,
            for environments that are trusted not to crash and a caller with nothing else to do meanwhile.
        chunk_size: C, actions per call and environment.
        info_keys: keys of ``info`` to keep; each must be a number in the info of every step.

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
    ) -> None:
        if not env_fns:
            raise ConfigError("env_fns: must not be empty")
        if chunk_size < 1:
            raise ConfigError(f"chunk_size: must be at least 1, is {chunk_size}")
        if not 0 <= num_workers <= len(env_fns):
            raise ConfigError(f"num_workers: must be in 0..{len(env_fns)} (num_envs), is {num_workers}")
        self.num_envs = len(env_fns)
        self.chunk_size = chunk_size
        self._shards: list[_Shard] = []
        self._pending: deque[tuple[Array, list[_Shard]]] = deque()
        self._running = np.zeros(self.num_envs, np.bool_)
        try:
            num_processes = num_workers - caller_steps
            for rank in range(max(num_workers, 1)):  # the caller last: the others step meanwhile
                self._shards.append(_WorkerProcess(rank) if rank < num_processes else _InProcess())
            self.observation_space, self.action_space = self._build(env_fns)
            self._buffers = self._share(tuple(info_keys))
            actions = self._buffers.actions
            self._recorder = EpisodeRecorder(self.num_envs, actions.shape[1:], actions.dtype)
        except BaseException:
            self.close()
            raise

    def _build(self, env_fns: Sequence[EnvFn]) -> tuple[gym.Space[Any], gym.Space[Any]]:
        num_shards = len(self._shards)
        for rank, shard in enumerate(self._shards):
            fns = {i: env_fns[i] for i in range(rank, self.num_envs, num_shards)}
            shard.submit("build", cloudpickle.dumps(fns))
        spaces = [pair for pairs in _gather(self._shards) for pair in pairs]
        expected = [(observation_fields(obs), action.shape, action.dtype) for obs, action in spaces]
        for other in expected:
            if other != expected[0]:
                raise ConfigError(f"env_fns: environments must have equal shapes, got {expected[0]} and {other}")
        return spaces[0]

    def _share(self, info_keys: tuple[str, ...]) -> Buffers:
        layout = BufferLayout(self.num_envs, self.chunk_size, info_keys, self.observation_space, self.action_space)
        directory = "/dev/shm" if os.path.isdir("/dev/shm") else None
        descriptor, path = tempfile.mkstemp(prefix="embodyflow-vector-env-", dir=directory)
        try:
            os.close(descriptor)
            buffers = Buffers.map(path, layout)
            for shard in self._shards:
                shard.submit("attach", path, layout)
            _gather(self._shards)
        finally:
            os.unlink(path)  # the maps stay; nothing is left on disk however the processes end
        return buffers

    def reset(
        self,
        indices: Sequence[int] | None = None,
        seeds: Sequence[int | None] | None = None,
        options: Sequence[dict[str, Any] | None] | None = None,
    ) -> dict[str, Array]:
        """Reset environments.

        Args:
            indices: the n environments; None is all.
            seeds: n seeds, one per environment; None leaves their generators as they are.
            options: n values of Gymnasium's ``reset(options=...)``.

        Returns:
            Key to first observation ``[n, ...]``.

        Raises:
            EnvError: an environment raised.
            EnvProcessDiedError: a process is gone.
        """
        self._require_idle("reset")
        rows = self._rows(indices)
        seeds = [None] * len(rows) if seeds is None else seeds
        options = [None] * len(rows) if options is None else options
        if not len(seeds) == len(options) == len(rows):
            raise ValueError(f"{len(rows)} environments, but {len(seeds)} seeds and {len(options)} options")
        self._running[rows] = False
        _gather(self._scatter(rows, "reset", seeds, options))
        self._recorder.begin(rows, seeds, options)
        self._running[rows] = True
        return {key: column[rows] for key, column in self._buffers.observation.items()}

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
            EnvError: an environment raised, or its episode ends before the history does: its seed does not say all.
            EnvProcessDiedError: a process is gone.
        """
        self._require_idle("replay")
        rows = self._rows(indices)
        if len(histories) != len(rows):
            raise ValueError(f"{len(rows)} environments, but {len(histories)} histories")
        self._running[rows] = False
        for row, history in zip(rows.tolist(), histories, strict=True):
            self._recorder.repeat(row, history)
        columns = zip(*((each.seed, each.options, each.actions) for each in histories), strict=True)
        _gather(self._scatter(rows, "replay", *columns))
        self._running[rows] = True
        return {key: column[rows] for key, column in self._buffers.observation.items()}

    def step(self, actions: npt.ArrayLike, indices: Sequence[int] | None = None) -> ChunkStep:
        """Execute one action chunk in each of n environments: ``step_async`` and ``step_wait``."""
        self._require_idle("step")
        self.step_async(actions, indices)
        return self.step_wait()

    def step_async(self, actions: npt.ArrayLike, indices: Sequence[int] | None = None) -> None:
        """Start action chunks; several calls with disjoint environments may be under way.

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
        self._running[rows] = False
        self._pending.append((rows, self._scatter(rows, "step")))

    def step_wait(self) -> ChunkStep:
        """Wait for the oldest ``step_async`` and return its result, rows in the order of its ``indices``.

        Raises:
            EnvError: an environment raised; those of this call must be reset.
            EnvProcessDiedError: a process is gone.
            RuntimeError: nothing is under way.
        """
        if not self._pending:
            raise RuntimeError("step_wait without a step_async")
        rows, shards = self._pending.popleft()
        _gather(shards)
        self._recorder.executed(rows)
        buffers = self._buffers
        step = ChunkStep(
            observation={key: column[rows] for key, column in buffers.observation.items()},
            rewards=buffers.rewards[rows],
            terminated=buffers.terminated[rows],
            truncated=buffers.truncated[rows],
            num_steps=buffers.num_steps[rows],
            infos={key: column[rows] for key, column in buffers.infos.items()},
        )
        self._running[rows] = ~(step.terminated | step.truncated)
        return step

    def close(self) -> None:
        """Close the environments and end the processes, by force after some seconds; again, it does nothing.

        Raises:
            EnvError: an environment could not be closed; every process is ended all the same.
        """
        shards, self._shards = self._shards, []
        self._running[:] = False
        self._pending.clear()
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
            raise RuntimeError(f"{method} while a step_async is under way: call step_wait first")

    def _require_running(self, rows: Array) -> None:
        if not self._running[rows].all():
            stopped = rows[~self._running[rows]].tolist()
            raise ValueError(f"environments {stopped} are finished or under way: reset them or wait first")

    def _rows(self, indices: Sequence[int] | None) -> npt.NDArray[np.int64]:
        if indices is None:
            return np.arange(self.num_envs)
        rows = np.asarray(indices, np.int64)
        if len(set(rows.tolist())) != len(rows) or not ((rows >= 0) & (rows < self.num_envs)).all():
            raise ValueError(f"indices: must be distinct and in 0..{self.num_envs - 1}, are {rows.tolist()}")
        return rows

    def _scatter(self, rows: Array, method: str, *columns: Sequence[Any]) -> list["_Shard"]:
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


class _Shard(Protocol):
    """Part of the environments: takes calls of :class:`EnvGroup` methods and answers them in order."""

    def submit(self, method: str, *arguments: Any) -> None: ...

    def result(self) -> Any: ...

    def close(self) -> None:
        """Begin to close."""

    def join(self, deadline: float) -> EnvError | None:
        """Finish closing, by force from ``deadline`` (of the monotonic clock) on; return what went wrong."""


def _gather(shards: Sequence[_Shard]) -> list[Any]:
    """Collect one answer of every shard, then raise the first error: no answer is left for a later call."""
    results, errors = [], []
    for shard in shards:
        try:
            results.append(shard.result())
        except (EnvError, EnvProcessDiedError) as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return results


class _InProcess:
    """Steps its environments in the calling process, at submission."""

    def __init__(self) -> None:
        self._group = EnvGroup()
        self._results: deque[Any] = deque()

    def submit(self, method: str, *arguments: Any) -> None:
        try:
            self._results.append(getattr(self._group, method)(*arguments))
        except EnvError as error:
            self._results.append(error)

    def result(self) -> Any:
        result = self._results.popleft()
        if isinstance(result, EnvError):
            raise result
        return result

    def close(self) -> None:
        self.submit("close")

    def join(self, deadline: float) -> EnvError | None:
        del deadline  # nothing runs any more
        return next((result for result in self._results if isinstance(result, EnvError)), None)


class _WorkerProcess:
    """Steps its environments in a process of its own."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._process, self._connection = start_child(EnvGroup.__module__)
        self._poll = select.poll()
        self._poll.register(self._connection.fileno(), select.POLLIN)

    def submit(self, method: str, *arguments: Any) -> None:
        with contextlib.suppress(OSError):  # it died: result() says so, once the others have answered
            send(self._connection, (method, arguments))

    def result(self) -> Any:
        # The end of the process ends the socket too, unless an environment left a child that holds it open.
        while not self._poll.poll(1000):
            if self._process.poll() is not None:
                raise self._died()
        try:
            result = receive(self._connection)
        except (EOFError, OSError) as error:
            raise self._died() from error
        if isinstance(result, EnvError):
            raise result
        return result

    def _died(self) -> EnvProcessDiedError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        code = self._process.returncode
        return EnvProcessDiedError(f"environment process {self._rank} (pid {self._process.pid}) died, exit code {code}")

    def close(self) -> None:
        with contextlib.suppress(OSError):  # it died: nothing to close
            send(self._connection, ("close", ()))

    def join(self, deadline: float) -> EnvError | None:
        error = None
        with contextlib.suppress(EOFError, OSError):  # the end of the process
            while self._poll.poll(1000 * max(0.0, deadline - time.monotonic())):
                result = receive(self._connection)
                error = result if isinstance(result, EnvError) else error
        self._connection.close()
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:  # an environment hangs
            self._process.kill()
            self._process.wait()
        return error
