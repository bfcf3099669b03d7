"""The stepping side of a vector environment: the environments of one process and the memory they write to.

:class:`embodyflow.simulation.vector.env.VectorEnv` drives an :class:`EnvGroup`, either in its own process or through a
socket in another process that runs :func:`main`. A message is a method of the group and its arguments. Messages carry
no arrays: these lie in one memory map that all processes share.
"""

import contextlib
import faulthandler
import fcntl
import math
import mmap
import os
import select
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle  # type: ignore[import-untyped]
import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from embodyflow.errors import ConfigError, InfrastructureError
from embodyflow.policies.observations import STATE_KEY, entries_of, fitted, observation_fields
from embodyflow.process.child import receive, send, spin
from embodyflow.process.tracing import record, span
from embodyflow.simulation.success import read_success

if TYPE_CHECKING:
    from embodyflow.simulation.mujoco_rollout import MujocoRollout
    from embodyflow.simulation.mujoco_tasks import Outcome

ARRAY_SPACES = (gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)
"""Spaces whose actions are arrays of numbers."""

PASSING_ON = (OrderEnforcing, PassiveEnvChecker, TimeLimit)
"""Gymnasium's wrappers whose step returns the observation as it is."""

SUCCESS = "success"
"""Key of the info in which environments of tasks report success."""

EnvFn = Callable[[], gym.Env[Any, Any]]
Array = npt.NDArray[Any]


class EnvError(RuntimeError):
    """An environment raised; the message holds its index (None means its process) and the original traceback."""

    def __init__(self, index: int | None, details: str) -> None:
        super().__init__(index, details)
        self.index = index
        self.details = details

    def __str__(self) -> str:
        where = "an environment process" if self.index is None else f"environment {self.index}"
        return f"{where} failed:\n{self.details}"


class EnvNotFiniteError(InfrastructureError):
    """An environment returned NaN or inf, perhaps because its native code corrupted memory.

    Attributes:
        index: Index of the environment.
        quantity: Name of the value that is not finite, with an article.
    """

    def __init__(self, index: int, quantity: str) -> None:
        super().__init__(index, quantity)
        self.index, self.quantity = index, quantity

    def __str__(self) -> str:
        return f"environment {self.index} returned {self.quantity} that is not finite"


@dataclass(frozen=True)
class BufferLayout:
    """Layout of the shared memory for N environments; every process derives the same layout from these values.

    Attributes:
        num_envs: N, the number of environments.
        chunk_size: C, the number of actions in a chunk.
        info_keys: Keys of the numbers in ``info`` to keep for every step.
        observation_space: Space of each environment's observation: a Box, or a Dict of spaces with a shape and a
            numeric dtype.
        action_space: Space of each environment's action, a Box, Discrete, MultiDiscrete or MultiBinary.
    """

    num_envs: int
    chunk_size: int
    info_keys: tuple[str, ...]
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]

    def fields(self) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Return (shape, dtype) of every array by name; names of observations and infos have a prefix.

        Raises:
            ConfigError: A space cannot be stored as an array; the message names it.
        """
        n, c = self.num_envs, self.chunk_size
        fields = {
            f"observation/{key}": ((n, *shape), dtype)
            for key, (shape, dtype) in observation_fields(self.observation_space).items()
        }
        if not isinstance(self.action_space, ARRAY_SPACES):
            allowed = "a Box, Discrete, MultiDiscrete or MultiBinary"
            raise ConfigError(f"action_space: must be {allowed}, is {self.action_space}")
        own = self.action_space.shape or ()  # Discrete has the shape ()
        fields["actions"] = ((n, c, *own), np.dtype(self.action_space.dtype))
        fields["rewards"] = ((n, c), np.dtype(np.float32))
        fields["terminated"] = fields["truncated"] = ((n,), np.dtype(np.bool_))
        fields["solved"] = ((n,), np.dtype(np.bool_))
        fields["num_steps"] = ((n,), np.dtype(np.int64))
        fields |= {f"infos/{key}": ((n, c), np.dtype(np.float64)) for key in self.info_keys}
        return fields


@dataclass(frozen=True)
class Buffers:
    """Arrays over all N environments of a vector environment, as :class:`BufferLayout` describes them."""

    observation: dict[str, Array]
    actions: Array
    rewards: Array
    terminated: Array
    truncated: Array
    solved: Array
    num_steps: Array
    infos: dict[str, Array]

    @classmethod
    def map(cls, path: str, layout: BufferLayout) -> "Buffers":
        """Grow the file at ``path`` as needed and map it as the arrays of ``layout``."""
        fields, offset, arrays = layout.fields(), 0, {}
        sizes = {name: int(np.prod(shape)) * dtype.itemsize for name, (shape, dtype) in fields.items()}
        total = sum(_aligned(size) for size in sizes.values())
        with open(path, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, total)  # raises if memory is short; a SIGBUS would follow otherwise
            memory = mmap.mmap(file.fileno(), total)
        for name, (shape, dtype) in fields.items():
            arrays[name] = np.ndarray(shape, dtype, memory, offset)
            offset += _aligned(sizes[name])
        groups: dict[str, dict[str, Array]] = {"observation": {}, "infos": {}}
        for name in [name for name in arrays if "/" in name]:
            group, key = name.split("/", 1)
            groups[group][key] = arrays.pop(name)
        return cls(**groups, **arrays)  # type: ignore[arg-type]


def _can_defer_images(env: gym.Env[Any, Any]) -> bool:
    """Return True if the environment draws images on demand, and no wrapper would miss them in a step."""
    while isinstance(env, gym.Wrapper):
        if type(env).step is not gym.Wrapper.step and not isinstance(env, PASSING_ON):
            return False
        env = env.env
    space = env.observation_space
    return hasattr(env, "defer_images") and isinstance(space, gym.spaces.Dict) and len(space) > 1


def _mujoco_rollout(envs: Mapping[int, gym.Env[Any, Any]]) -> "MujocoRollout | None":
    """Return the faster stepper of one of Gymnasium's plain MuJoCo tasks, or None for other environments."""
    if not all(type(env.unwrapped).__module__.startswith("gymnasium.envs.mujoco.") for env in envs.values()):
        return None
    from embodyflow.simulation.mujoco_rollout import MujocoRollout  # doubles the time that a process needs to start

    return MujocoRollout.for_envs(envs)


def _aligned(size: int) -> int:
    """Round a size up to a multiple of a cache line, so that arrays do not share lines."""
    return -(-size // 64) * 64


class EnvGroup:
    """Environments of one process, stepped one after the other, a whole action chunk each."""

    def __init__(self) -> None:
        self._envs: dict[int, gym.Env[Any, Any]] = {}
        self._deferring: set[int] = set()  # environments that draw images only when asked
        self._rollout: MujocoRollout | None = None
        self._all: list[int] = []  # indices of the environments
        self._all_places = slice(0)
        self._buffers: Buffers

    def build(self, pickled_env_fns: bytes) -> list[tuple[gym.Space[Any], gym.Space[Any]]]:
        """Build environments from a cloudpickled ``{index: env_fn}``; return their (observation, action) spaces."""
        env_fns: Mapping[int, EnvFn] = cloudpickle.loads(pickled_env_fns)
        for index, env_fn in env_fns.items():
            with raise_env_error(index):
                self._envs[index] = env_fn()
        for index, env in self._envs.items():
            if _can_defer_images(env):  # only the last observation of a chunk is used
                env.unwrapped.defer_images = True  # type: ignore[attr-defined]
                self._deferring.add(index)
        self._rollout = _mujoco_rollout(self._envs)
        self._all = list(self._envs)
        stride = self._all[1] - self._all[0] if len(self._all) > 1 else 1
        self._all_places = slice(self._all[0], self._all[-1] + 1, stride)
        return [(env.observation_space, env.action_space) for env in self._envs.values()]

    def record(self, folder: str, process: str) -> None:
        """Record the process in the run's trace, unless it records already; see :mod:`embodyflow.process.tracing`."""
        record(Path(folder), process)

    def attach(self, path: str, layout: BufferLayout) -> None:
        """Map the shared memory for observations, rewards and actions."""
        self._buffers = Buffers.map(path, layout)

    def reset(
        self, indices: Sequence[int], seeds: Sequence[int | None], options: Sequence[dict[str, Any] | None]
    ) -> None:
        """Reset the environments ``indices`` and write their first observations."""
        for index, seed, option in zip(indices, seeds, options, strict=True):
            with raise_env_error(index):
                observation, info = self._envs[index].reset(seed=seed, options=option)
                if SUCCESS in self._buffers.infos:  # control jobs have no use for it
                    self._buffers.solved[index] = _is_solved(info)
                self._write_observation(index, observation)
        if self._rollout is not None:
            self._rollout.load_states(indices)
        self._require_finite_observation(indices)

    def step(self, indices: Sequence[int]) -> None:
        """Execute the action chunks in the buffers of ``indices``."""
        index = None
        try:
            if self._rollout is not None:
                places = self._places(indices)
                self._write_outcome(places, *self._rollout.step(indices, self._buffers.actions[places]))
            else:
                for index in indices:
                    self._step_chunk(index)
        except Exception as error:
            raise EnvError(index, traceback.format_exc()) from error
        self._require_finite(indices, "a reward", self._buffers.rewards)
        for key, column in self._buffers.infos.items():
            self._require_finite(indices, f"info[{key!r}]", column)
        self._require_finite_observation(indices)

    def _step_chunk(self, index: int) -> None:
        env, buffers = self._envs[index], self._buffers
        actions = buffers.actions[index].copy()  # the environment may keep it, and the buffer's row will change
        rewards = np.zeros(len(actions), np.float32)
        infos = {key: np.zeros(len(actions)) for key in buffers.infos}
        num_steps = 0
        for action in actions:
            observation, rewards[num_steps], terminated, truncated, info = env.step(action)
            for key, values in infos.items():
                value = _info_value(info, key)
                values[num_steps] = _read_success(value) if key == SUCCESS else value
            num_steps += 1
            if terminated or truncated:
                break
        if index in self._deferring:
            observation = env.unwrapped.observe() | observation  # type: ignore[attr-defined]
        self._write_observation(index, observation)
        buffers.rewards[index] = rewards
        buffers.terminated[index] = terminated
        buffers.truncated[index] = truncated
        buffers.num_steps[index] = num_steps
        for key, column in buffers.infos.items():
            column[index] = infos[key]

    def _places(self, indices: Sequence[int]) -> slice | Sequence[int]:
        """Return rows of the buffers: a slice, which NumPy reads and writes faster, for all environments in order."""
        return self._all_places if indices == self._all else indices

    def _write_outcome(self, places: slice | Sequence[int], outcome: "Outcome", truncated: Array) -> None:
        """Write the results of a chunk; each environment's results stop at its first end."""
        buffers, infos = self._buffers, outcome.infos
        if truncated.shape[1] == 1:
            last: tuple[slice | Array, int | Array] = (slice(None), 0)
            buffers.rewards[places], buffers.num_steps[places] = outcome.reward, 1
            for key, column in buffers.infos.items():
                column[places] = _info_value(infos, key)
        else:
            over = outcome.terminated | truncated
            ends = np.where(over.any(axis=1), over.argmax(axis=1), over.shape[1] - 1)
            last, executed = (np.arange(len(over)), ends), np.arange(over.shape[1]) <= ends[:, None]
            buffers.rewards[places], buffers.num_steps[places] = np.where(executed, outcome.reward, 0), ends + 1
            for key, column in buffers.infos.items():
                column[places] = np.where(executed, _info_value(infos, key), 0)
        buffers.observation[STATE_KEY][places] = outcome.observation[last]
        buffers.terminated[places], buffers.truncated[places] = outcome.terminated[last], truncated[last]

    def _write_observation(self, index: int, observation: Any) -> None:
        """Write an observation.

        Raises:
            ValueError: An entry does not fit its space; see :func:`~embodyflow.policies.observations.fitted`.
        """
        entries = entries_of(observation)
        for key, rows in self._buffers.observation.items():
            row = rows[index, ...]
            row[...] = fitted(key, entries[key], row.shape, row.dtype)

    def _require_finite_observation(self, indices: Sequence[int]) -> None:
        for key, column in self._buffers.observation.items():
            self._require_finite(indices, f"an observation {key!r}", column)

    def _require_finite(self, indices: Sequence[int], quantity: str, column: Array) -> None:
        if column.dtype.kind != "f":
            return
        values = column[self._places(indices)]
        # One product tells the usual case; that of large finite values overflows.
        if not math.isfinite(np.vdot(values, values)) and not np.isfinite(values).all():
            raise EnvNotFiniteError(next(i for i in indices if not np.isfinite(column[i]).all()), quantity)

    def close(self) -> None:
        """Close every environment."""
        for index, env in self._envs.items():
            with raise_env_error(index):
                env.close()
        self._envs = {}


def _is_solved(info: Mapping[str, Any]) -> bool:
    """Return True if the info of a reset says that the goal is reached; most environments do not say."""
    value = info.get(SUCCESS)
    return False if value is None else _read_success(value)


def _info_value(info: Mapping[str, Any], key: str) -> Any:
    if key not in info:
        raise KeyError(f"info_keys: info has no {key!r}, it has {sorted(info)}")
    return info[key]


def _read_success(value: Any) -> bool:
    try:
        return read_success(value)
    except ValueError as error:
        raise ValueError(f"its info[{SUCCESS!r}] {error}") from None


@contextlib.contextmanager
def raise_env_error(index: int | None) -> Iterator[None]:
    """Raise :class:`EnvError` with the environment's index in place of any exception; None means all of them."""
    try:
        yield
    except Exception as error:
        raise EnvError(index, traceback.format_exc()) from error


def main(descriptor: int, parent_pid: int, lifeline: int, stacks: int, busy_waits: int) -> None:
    """Run a process of environments; see :func:`serve`."""
    serve(EnvGroup(), descriptor, parent_pid, lifeline, stacks, busy_waits)


def serve(group: EnvGroup, descriptor: int, parent_pid: int, lifeline: int, stacks: int, busy_waits: int) -> None:
    """Run an environment process: execute incoming messages until ``close`` or until the caller ends.

    Args:
        group: Environments of the process.
        descriptor: File descriptor of the socket.
        parent_pid: Process id of the caller.
        lifeline: File descriptor of a pipe whose other end only the caller holds.
        stacks: File descriptor that receives the stacks of all threads on SIGUSR1.
        busy_waits: 1 to poll for a moment before sleeping until the next message, else 0.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller closes this process
    faulthandler.register(signal.SIGUSR1, file=stacks)
    _end_with_parent(lifeline, parent_pid)
    connection, method = Connection(descriptor), ""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the caller has ended
        while method != "close":
            if busy_waits:
                spin(poll)
            method, arguments = receive(connection)
            reply: Any
            try:
                with span(method, "environment"):
                    reply = getattr(group, method)(*arguments)
            except (EnvError, EnvNotFiniteError) as error:
                reply = error
            except Exception:
                reply = EnvError(None, traceback.format_exc())
            send(connection, reply)


def _end_with_parent(pipe: int, parent_pid: int) -> None:
    """Ask the kernel to kill this process when its parent closes the other end of a pipe.

    A watching thread could not run while native code hangs with the interpreter's lock.
    """
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    if os.getppid() != parent_pid:  # the parent ended before the pipe was set up
        os._exit(1)
