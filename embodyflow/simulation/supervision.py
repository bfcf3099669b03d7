"""Recovery of environments whose process dies, hangs, leaks memory, or returns NaN or inf.

Simulators crash, hang and leak in native code, which is not the policy's fault. A :class:`SupervisedShard` restarts the
process, replays the running episodes (:mod:`embodyflow.simulation.episode_history`) and retries the call in flight, one
environment after the other. The caller receives the same answer as without the fault.
"""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np

from embodyflow.config.robots.environment import EnvConfig
from embodyflow.data.metrics import Metric, total
from embodyflow.errors import ConfigError, InfrastructureError
from embodyflow.simulation.episode_history import EpisodeRecorder
from embodyflow.simulation.vector.shards import EnvMemoryError, EnvProcessDiedError, EnvTimeoutError, Shard
from embodyflow.simulation.vector.worker import Buffers, EnvError, EnvNotFiniteError

MAX_FAULTS = 3
"""Number of faults of one environment, while its call is the only one running, after which it is quarantined."""

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 5.0

REPLAY_ENDED_EARLY = "the replayed episode ended early: its seed and options do not determine it"
_logger = logging.getLogger(__name__)


class EnvQuarantinedError(RuntimeError):
    """An episode kills, hangs or overfills its process at each attempt, so it cannot be played from this seed.

    Attributes:
        index: Index of the environment.
        details: Name, seed and options of the environment, and its last fault.
    """

    def __init__(self, index: int, details: str) -> None:
        super().__init__(index, details)
        self.index, self.details = index, details

    def __str__(self) -> str:
        return self.details


class EpisodesLostError(InfrastructureError):
    """Episodes were lost with their process and cannot be replayed, because they were reset without a seed."""


@dataclass
class Supervision:
    """Fault limits and counters, shared by all vector environments of a worker, whichever threads step them.

    Attributes:
        step_timeout: Seconds that an environment may take for an action chunk.
        reset_timeout: Seconds that an environment may take to be built, and to reset.
        max_restarts: Number of restarts after which the machine is considered broken.
        max_memory_gb: GB (10⁹ bytes) of memory at which an environment process is restarted; None means no limit.
        restores_episodes: Whether a replay restores an episode. Otherwise a process that exceeds its memory is
            restarted only when none of its episodes is open.
        restarts: Number of restarts so far, after a death, a hang, or NaN or inf.
        timeouts: Number of restarts after a hang.
        memory_restarts: Number of restarts of processes that exceeded their memory. Those between two calls have no
            limit and are not among ``restarts``, because each undoes a leak that is expected to come back.
        quarantined: Number of episodes abandoned because they failed at each attempt.
    """

    step_timeout: float = 60.0
    reset_timeout: float = 300.0
    max_restarts: int = 100
    max_memory_gb: float | None = None
    restores_episodes: bool = True
    restarts: int = 0
    timeouts: int = 0
    memory_restarts: int = 0
    quarantined: int = 0
    _reported: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def from_config(cls, env: EnvConfig) -> Self:
        """Return a supervision with the limits of an environment's configuration."""
        return cls(env.step_timeout, env.reset_timeout, env.max_restarts, env.max_memory_gb, not env.allow_unrestorable)

    @property
    def max_bytes(self) -> float | None:
        """Memory of an environment process in bytes; None means no limit."""
        return None if self.max_memory_gb is None else self.max_memory_gb * 1e9

    def metrics(self) -> dict[str, Metric]:
        """Return the counts since the last call."""
        with self._lock:
            counts = Counter(
                restarts=self.restarts,
                timeouts=self.timeouts,
                memory_restarts=self.memory_restarts,
                quarantined=self.quarantined,
            )
            reported, self._reported = self._reported, counts
        return {f"perf/env_{name}": total(count - reported[name]) for name, count in counts.items()}

    def record_fault(self, fault: InfrastructureError, call: str) -> None:
        """Count a fault during a call, and the restart that follows.

        Raises:
            InfrastructureError: The number of restarts exceeds ``max_restarts``.
        """
        with self._lock:
            if self.restarts == self.max_restarts:
                raise InfrastructureError(
                    f"env.max_restarts={self.max_restarts}: environment processes failed more often; the last time "
                    f"{fault}"
                ) from fault
            self.restarts += 1
            self.timeouts += isinstance(fault, EnvTimeoutError)
            self.memory_restarts += isinstance(fault, EnvMemoryError)
        _logger.warning("%s, in %s: restarting (%d of %d)", fault, call, self.restarts, self.max_restarts)

    def record_leak(self, excess: EnvMemoryError) -> None:
        """Count the restart of a process that exceeds its memory between two calls."""
        with self._lock:
            self.memory_restarts += 1
        _logger.warning("%s: restarting it (%d)", excess, self.memory_restarts)

    def record_quarantine(self) -> None:
        """Count an episode that is abandoned."""
        with self._lock:
            self.quarantined += 1


class Call(NamedTuple):
    """A call of a method of :class:`EnvGroup`.

    Attributes:
        method: Name of the method.
        arguments: Arguments of the method. A call for some environments starts with their indices, followed by columns
            with an entry for each.
        indices: Indices of the environments; empty if the call is for all.
    """

    method: str
    arguments: tuple[Any, ...]
    indices: Sequence[int] = ()

    def __str__(self) -> str:
        return f"{self.method} of environments {list(self.indices)}" if self.indices else self.method


class SupervisedShard:
    """A shard that is restarted when it fails, and then replays its episodes.

    Args:
        start: Function that starts the shard.
        indices: Indices of its environments.
        supervision: Limits and counters, shared with the other shards.
    """

    def __init__(self, start: Callable[[], Shard], indices: Sequence[int], supervision: Supervision) -> None:
        self._start, self.indices, self.supervision = start, indices, supervision
        self._shard = start()
        self._preparations: list[Call] = []
        self.recorder: EpisodeRecorder
        self.buffers: Buffers
        self._calls: deque[Call] = deque()
        self._fault: InfrastructureError | None = None  # the reason why the shard must be restarted

    def prepare(self, method: str, *arguments: Any) -> None:
        """Start a call of setup, which each restart repeats before other calls."""
        self._preparations.append(Call(method, arguments))
        self._shard.submit(method, *arguments)

    def wait_prepared(self) -> Any:
        """Wait for the answer to :meth:`prepare` and return it, without retries.

        Raises:
            EnvError: An environment raised.
            EnvProcessDiedError, EnvTimeoutError: The process died or hung, and has ended.
            ConfigError: The process exceeds its memory at once.
        """
        try:
            answer = self._shard.result(self.timeout(self._preparations[-1]))
        except EnvMemoryError as excess:
            raise self._memory_mistake(excess) from excess
        self._require_memory()
        return answer

    def use(self, recorder: EpisodeRecorder, buffers: Buffers) -> None:
        """Set the recorder that replays read episodes from, and the buffers for their actions."""
        self.recorder, self.buffers = recorder, buffers

    def submit(self, method: str, indices: Sequence[int], *columns: Sequence[Any]) -> None:
        """Start a call."""
        call = Call(method, (indices, *columns), indices)
        self._calls.append(call)
        self._limit_memory()
        if self._fault is None:
            self._shard.submit(method, *call.arguments)

    def result(self) -> None:
        """Wait until the oldest call has succeeded, with as many restarts as it needs.

        Raises:
            EnvError: An environment raised, or returned NaN or inf even in a new process.
            EnvQuarantinedError: An environment kills or hangs its process at each attempt of the call.
            EpisodesLostError: The process ended, and an episode of it cannot be replayed.
            InfrastructureError: There were too many faults.
            ConfigError: The process exceeds its memory as soon as it has restarted.
        """
        call, failed = self._calls.popleft(), None
        if self._fault is None:
            if self._wait_for(call):
                return
            failed = call
        try:
            self._retry(call, failed)
        finally:
            if self._fault is None:
                for later in self._calls:
                    self._shard.submit(later.method, *later.arguments)

    def abandon(self) -> None:
        """Discard the calls in flight; the shard restarts before the next call."""
        if self._calls:
            self._calls.clear()
            self._fault = InfrastructureError("an environment process had calls in flight that were abandoned")

    def close(self) -> None:
        """Start closing."""
        self._shard.close()

    def join(self, deadline: float) -> EnvError | None:
        """Finish closing, by force after ``deadline`` (monotonic clock); return the error of closing, if any."""
        return self._shard.join(deadline)

    def _limit_memory(self) -> None:
        """Mark the shard for a restart if it exceeds its memory and a replay restores its episodes.

        Calls in flight are repeated after the restart, as after a death.
        """
        if self._fault is None and (excess := self._shard.excess()) is not None and self._can_replay():
            self.supervision.record_leak(excess)
            self._fault = excess

    def _can_replay(self) -> bool:
        """Return True if a replay would restore every open episode and every one that is about to begin."""
        recorder = self.recorder
        began = [index for index in self.indices if recorder.open[index]]
        begins = [index for call in self._calls if call.method == "reset" for index in call.indices]
        seeded = all(recorder.is_seeded(index) for index in (*began, *begins))
        return seeded and (self.supervision.restores_episodes or not began)

    def _require_memory(self) -> None:
        """Raise ConfigError if the shard exceeds its memory although it has just started: it would do so again."""
        if (excess := self._shard.excess()) is not None:
            raise self._memory_mistake(excess)

    def _memory_mistake(self, excess: EnvMemoryError) -> ConfigError:
        return ConfigError(
            f"env.max_memory_gb={self.supervision.max_memory_gb:g}: must be more than what {len(self.indices)} "
            f"environments need right after a start and the replay of their episodes; {excess}; raise it, or lower "
            "rollout.envs_per_worker, or raise rollout.env_processes"
        )

    def _wait_for(self, call: Call) -> bool:
        """Wait for the answer to a call and return True, or record a fault and return False."""
        try:
            self._shard.result(self.timeout(call))
        except (EnvProcessDiedError, EnvTimeoutError, EnvMemoryError, EnvNotFiniteError) as fault:
            self._fault = fault
            self.supervision.record_fault(fault, str(call))
            return False
        except EnvError:
            raise
        except BaseException:  # an interrupt: the answer is still pending
            self._fault = InfrastructureError("the wait for an environment process was interrupted")
            raise
        return True

    def _retry(self, call: Call, failed: Call | None) -> None:
        """Restart the shard and replay until the call succeeds or a limit of faults is reached."""
        faults: Counter[int | None] = Counter()
        while True:
            if failed is not None:
                self._count_fault(failed, faults)
            failed = self._restart(call)
            if failed is None:
                return

    def _restart(self, call: Call) -> Call | None:
        """Restart the shard, replay its episodes and repeat the call; return the part that failed, if any."""
        self._require_seeds(call)
        self._shard.kill()
        self._shard = self._start()
        try:
            for part in self._replay(call):
                self._shard.submit(part.method, *part.arguments)
                if not self._wait_for(part):
                    if isinstance(self._fault, EnvMemoryError) and not part.indices:
                        raise self._memory_mistake(self._fault)
                    return part
                self._require_memory()
        except EnvError as error:  # this episode cannot be replayed; others may not have been replayed yet
            if error.index is not None:
                self.recorder.open[error.index] = False
            self._fault = InfrastructureError(str(error))
            raise
        self._fault = None
        return None

    def _replay(self, call: Call) -> Iterator[Call]:
        """Yield the calls that restore a new shard, then the call itself."""
        recorder, buffers = self.recorder, self.buffers
        yield from self._preparations
        yield from self.restoring_calls()
        for in_flight in (call, *self._calls):
            if in_flight.method == "step":
                for index in in_flight.indices:
                    buffers.actions[index] = recorder.staged(index)
        yield from self.parts(call)

    def restoring_calls(self) -> Iterator[Call]:
        """Yield the calls that replay the open episodes.

        Each of them is for a single environment, so that a further fault names its culprit.
        """
        recorder, buffers = self.recorder, self.buffers
        for index in np.flatnonzero(recorder.open).tolist():
            if index in self.indices:
                history = recorder.history(index)
                yield Call("reset", ([index], [history.seed], [history.options]), [index])
                for chunk in recorder.chunks(index):
                    buffers.actions[index] = chunk
                    yield Call("step", ([index],), [index])
                    if buffers.terminated[index] or buffers.truncated[index]:
                        raise EnvError(index, REPLAY_ENDED_EARLY)

    def parts(self, call: Call) -> Sequence[Call]:
        """Return a call as the calls by which it is repeated: one per environment."""
        columns = zip(*call.arguments, strict=True)
        return [
            Call(call.method, tuple([entry] for entry in entries), [index])
            for index, entries in zip(call.indices, columns, strict=True)
        ]

    def timeout(self, call: Call) -> float:
        """Return the seconds that a call may take."""
        limits = self.supervision
        each = limits.step_timeout if call.method == "step" else limits.reset_timeout
        return each * len(call.indices or self.indices)

    def suspects(self, failed: Call) -> Sequence[int | None]:
        """Return the environments that a failed call is for; ``None`` stands for their process."""
        return failed.indices or [None]

    def _require_seeds(self, call: Call) -> None:
        """Raise if an episode without a seed is lost; the other episodes can still be replayed."""
        recorder = self.recorder
        lost = [index for index in self.indices if recorder.open[index] and not recorder.is_seeded(index)]
        recorder.open[lost] = False
        if lost or (call.method == "step" and not recorder.open[call.indices].all()):
            names = ", ".join(recorder.describe(index) for index in lost or call.indices)
            raise EpisodesLostError(f"{self._fault}; episodes reset without a seed are lost with it: {names}")

    def _count_fault(self, failed: Call, faults: Counter[int | None]) -> None:
        """Count the fault of an environment if only one can be the culprit; back off before the next attempt.

        Raises:
            EnvError, EnvQuarantinedError, InfrastructureError: The environment has reached its limit of faults.
        """
        fault = self._fault
        suspects = self.suspects(failed)
        if isinstance(fault, EnvNotFiniteError):
            suspects = [fault.index]
        if len(suspects) == 1:
            faults[suspects[0]] += 1
            self._enforce_limit(suspects[0], faults[suspects[0]])
        time.sleep(min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** faults.total()))

    def _enforce_limit(self, culprit: int | None, num_faults: int) -> None:
        fault = self._fault
        if culprit is None and num_faults == MAX_FAULTS:
            raise InfrastructureError(f"environments cannot be restarted: {fault}") from fault
        if culprit is None:
            return
        name = self.recorder.describe(culprit)
        if isinstance(fault, EnvNotFiniteError) and num_faults > 1:
            raise EnvError(culprit, f"{name}: {fault}, also in a new process")
        if num_faults == MAX_FAULTS:
            self.supervision.record_quarantine()
            details = (
                f"{name}: killed, hung or overfilled its process {MAX_FAULTS} times in a row; the last time {fault}"
            )
            raise EnvQuarantinedError(culprit, details)
