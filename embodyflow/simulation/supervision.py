"""What is done about environments whose process dies, hangs, or gives numbers that are none.

Simulators crash in native code, and hang there. That says nothing about the policy: the process is started again, its
environments' running episodes are brought to where they were (:mod:`embodyflow.simulation.episode_history`), and the
call under way is done again, one environment after the other. Whoever called sees the answer it would have seen.
"""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np

from embodyflow.config.environment import EnvConfig
from embodyflow.data.metrics import Metric, total
from embodyflow.errors import InfrastructureError
from embodyflow.simulation.episode_history import EpisodeRecorder
from embodyflow.simulation.vector_env_shards import EnvProcessDiedError, EnvTimeoutError, Shard
from embodyflow.simulation.vector_env_worker import Buffers, EnvError, EnvNotFiniteError

MAX_FAULTS = 3
"""How often an environment may kill or hang its process, alone in it with one call, before it is not tried again."""

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 5.0

ENDED = "the episode ended when it was played again, and had not before: its seed does not say all of it"
_logger = logging.getLogger(__name__)


class EnvQuarantinedError(RuntimeError):
    """An episode kills or hangs its process whenever it is played: by this seed it cannot be.

    Attributes:
        index: of the environment.
        details: its name, seed and options, and what happened last.
    """

    def __init__(self, index: int, details: str) -> None:
        super().__init__(index, details)
        self.index, self.details = index, details

    def __str__(self) -> str:
        return self.details


class EpisodesLostError(InfrastructureError):
    """Episodes went with their process, and were reset without a seed: nobody can have them again."""


@dataclass
class Supervision:
    """How much is borne, and how much there was; one for all vector environments of a worker.

    Attributes:
        step_timeout: seconds an environment may take for an action chunk.
        reset_timeout: seconds an environment may take for being built, and for a reset.
        max_restarts: after so many the machine is taken for broken.
        restarts: of processes, so far; because they died, hung or gave numbers that are none.
        timeouts: those of them that hung.
        quarantined: episodes given up because they did so whenever they were played.
    """

    step_timeout: float = 60.0
    reset_timeout: float = 300.0
    max_restarts: int = 100
    restarts: int = 0
    timeouts: int = 0
    quarantined: int = 0
    _told: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, env: EnvConfig) -> Self:
        """Return the supervision that an environment's configuration asks for."""
        return cls(env.step_timeout, env.reset_timeout, env.max_restarts)

    def metrics(self) -> dict[str, Metric]:
        """Count what there was since the last call; nothing of it is the policy's doing."""
        counts = Counter(restarts=self.restarts, timeouts=self.timeouts, quarantined=self.quarantined)
        told, self._told = self._told, counts
        return {f"perf/env_{name}": total(count - told[name]) for name, count in counts.items()}

    def note(self, fault: InfrastructureError, what: str) -> None:
        """Count a fault.

        Raises:
            InfrastructureError: it is one too many.
        """
        if self.restarts == self.max_restarts:
            raise InfrastructureError(
                f"environment processes were started again env.max_restarts={self.max_restarts} times; then {fault}"
            ) from fault
        self.restarts += 1
        self.timeouts += isinstance(fault, EnvTimeoutError)
        _logger.warning("%s, in %s: started again (%d of %d)", fault, what, self.restarts, self.max_restarts)


class _Call(NamedTuple):
    """A call of a method of :class:`EnvGroup`.

    Attributes:
        arguments: the environments first, where it is for some; then columns with an entry for each.
        indices: the environments.
    """

    method: str
    arguments: tuple[Any, ...]
    indices: Sequence[int] = ()

    def parts(self) -> list["_Call"]:
        """Return the call as one for each environment."""
        columns = zip(*self.arguments, strict=True)
        return [
            _Call(self.method, tuple([entry] for entry in entries), [index])
            for index, entries in zip(self.indices, columns, strict=True)
        ]

    def __str__(self) -> str:
        return f"{self.method} of environments {list(self.indices)}" if self.indices else self.method


class SupervisedShard:
    """A shard that is started again when it fails, and then does again what it had done.

    Args:
        start: starts the shard.
        indices: of its environments.
        supervision: shared with the others.
    """

    def __init__(self, start: Callable[[], Shard], indices: Sequence[int], supervision: Supervision) -> None:
        self._start, self.indices, self._supervision = start, indices, supervision
        self._shard = start()
        self._preparations: list[_Call] = []
        self._recorder: EpisodeRecorder
        self._buffers: Buffers
        self._calls: deque[_Call] = deque()
        self._fault: InfrastructureError | None = None  # why the shard must be started again

    def prepare(self, method: str, *arguments: Any) -> None:
        """Begin a call that comes before all environments' calls, now and after each start."""
        self._preparations.append(_Call(method, arguments))
        self._shard.submit(method, *arguments)

    def prepared(self) -> Any:
        """Return the answer to :meth:`prepare`, which is not tried again.

        Raises:
            EnvError: an environment raised.
            EnvProcessDiedError, EnvTimeoutError: the process is gone.
        """
        return self._shard.result(self._seconds(self._preparations[-1]))

    def watch(self, recorder: EpisodeRecorder, buffers: Buffers) -> None:
        """Have the episodes from there, and their actions pass there, from now on."""
        self._recorder, self._buffers = recorder, buffers

    def submit(self, method: str, indices: Sequence[int], *columns: Sequence[Any]) -> None:
        """Begin a call."""
        call = _Call(method, (indices, *columns), indices)
        self._calls.append(call)
        if self._fault is None:
            self._shard.submit(method, *call.arguments)

    def result(self) -> None:
        """Wait until the oldest call is done, however often it must be begun.

        Raises:
            EnvError: an environment raised, or gave numbers that are none even in a new process.
            EnvQuarantinedError: an environment kills or hangs its process whenever it gets the call.
            EpisodesLostError: the process is gone, and an episode cannot be had again.
            InfrastructureError: there were too many faults.
        """
        call, failed = self._calls.popleft(), None
        if self._fault is None:
            if self._succeeds(call):
                return
            failed = call
        try:
            self._do_again(call, failed)
        finally:
            if self._fault is None:
                for later in self._calls:
                    self._shard.submit(later.method, *later.arguments)

    def abandon(self) -> None:
        """Give up the calls under way: their answers are nobody's any more."""
        if self._calls:
            self._calls.clear()
            self._fault = InfrastructureError("an environment process was doing what nobody wants any more")

    def close(self) -> None:
        """Begin to close."""
        self._shard.close()

    def join(self, deadline: float) -> EnvError | None:
        """Finish closing, by force from ``deadline`` (of the monotonic clock) on; return what went wrong."""
        return self._shard.join(deadline)

    def _succeeds(self, call: _Call) -> bool:
        """Wait for the answer to a call; a fault is counted and remembered."""
        try:
            self._shard.result(self._seconds(call))
        except (EnvProcessDiedError, EnvTimeoutError, EnvNotFiniteError) as fault:
            self._fault = fault
            self._supervision.note(fault, str(call))
            return False
        except EnvError:
            raise
        except BaseException:  # the answer is still to come
            self._fault = InfrastructureError("an environment process was not waited for")
            raise
        return True

    def _seconds(self, call: _Call) -> float:
        limits = self._supervision
        each = limits.step_timeout if call.method == "step" else limits.reset_timeout
        return each * len(call.indices or self.indices)

    def _do_again(self, call: _Call, failed: _Call | None) -> None:
        """Start the shard again until the call is done, or it is known that it cannot be."""
        faults: Counter[int | None] = Counter()
        while True:
            if failed is not None:
                self._blame(failed, faults)
            failed = self._failing_part(call)
            if failed is None:
                return

    def _failing_part(self, call: _Call) -> _Call | None:
        """Start the shard again and have all done there; return what failed in doing so."""
        self._require_episodes(call)
        self._shard.kill()
        self._shard = self._start()
        try:
            for part in self._everything(call):
                self._shard.submit(part.method, *part.arguments)
                if not self._succeeds(part):
                    return part
        except EnvError as error:  # an episode that cannot be had again; others may not have been yet
            if error.index is not None:
                self._recorder.open[error.index] = False
            self._fault = InfrastructureError(str(error))
            raise
        self._fault = None
        return None

    def _everything(self, call: _Call) -> Iterator[_Call]:
        """Yield what makes of a new shard the one there was, and then the call; for one environment after the other.

        So it is known whose fault it is if it fails again.
        """
        recorder, buffers = self._recorder, self._buffers
        yield from self._preparations
        for index in np.flatnonzero(recorder.open).tolist():
            if index in self.indices:
                history = recorder.history(index)
                yield _Call("reset", ([index], [history.seed], [history.options]), [index])
                for chunk in recorder.chunks(index):
                    buffers.actions[index] = chunk
                    yield _Call("step", ([index],), [index])
                    if buffers.terminated[index] or buffers.truncated[index]:
                        raise EnvError(index, ENDED)
        for under_way in (call, *self._calls):
            if under_way.method == "step":
                for index in under_way.indices:
                    buffers.actions[index] = recorder.ordered(index)
        yield from call.parts()

    def _require_episodes(self, call: _Call) -> None:
        """Refuse to go on without an episode that cannot be had again; the others still can."""
        recorder = self._recorder
        lost = [index for index in self.indices if recorder.open[index] and not recorder.is_seeded(index)]
        recorder.open[lost] = False
        if lost or (call.method == "step" and not recorder.open[call.indices].all()):
            names = ", ".join(recorder.describe(index) for index in lost or call.indices)
            raise EpisodesLostError(f"{self._fault}; episodes reset without a seed are lost with it: {names}")

    def _blame(self, failed: _Call, faults: Counter[int | None]) -> None:
        """Note whose fault it was; wait a little before the next attempt.

        Raises:
            EnvError, EnvQuarantinedError, InfrastructureError: there is to be none.
        """
        fault = self._fault
        suspects: Sequence[int | None] = failed.indices or [None]
        if isinstance(fault, EnvNotFiniteError):
            suspects = [fault.index]
        if len(suspects) == 1:
            faults[suspects[0]] += 1
            self._judge(suspects[0], faults[suspects[0]])
        time.sleep(min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** faults.total()))

    def _judge(self, culprit: int | None, num_faults: int) -> None:
        fault = self._fault
        if culprit is None and num_faults == MAX_FAULTS:
            raise InfrastructureError(f"environments cannot be started again: {fault}") from fault
        if culprit is None:
            return
        name = self._recorder.describe(culprit)
        if isinstance(fault, EnvNotFiniteError) and num_faults > 1:
            raise EnvError(culprit, f"{name}: {fault}, in a new process too")
        if num_faults == MAX_FAULTS:
            self._supervision.quarantined += 1
            details = f"{name}: kills or hangs its process, {MAX_FAULTS} times in a row; the last time {fault}"
            raise EnvQuarantinedError(culprit, details)
