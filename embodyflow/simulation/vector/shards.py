"""Shards of a vector environment, stepped in the calling process or in a separate process."""

import contextlib
import os
import select
import signal
import time
from collections import deque
from typing import Any, Protocol

from embodyflow.errors import InfrastructureError
from embodyflow.process.child import await_end, receive, send, spin, start_child
from embodyflow.process.memory import private_bytes
from embodyflow.process.tracing import span
from embodyflow.simulation.environment_output import OutputLimit, OutputPipe, PrintingLimited
from embodyflow.simulation.vector.worker import EnvError, EnvGroup, EnvNotFiniteError

STACKS_SECONDS = 1.0
"""Time that a hanging process has to write its stacks."""

MEASURE_SECONDS = 0.1
"""Least time between two measurements of a process's memory, each of which takes some tens of microseconds."""


class EnvProcessDiedError(InfrastructureError):
    """An environment process ended unexpectedly: killed, out of memory or crashed in native code."""


class EnvTimeoutError(InfrastructureError):
    """An environment process did not answer in time; the message shows its stacks."""


class EnvMemoryError(InfrastructureError):
    """An environment process uses more memory than ``env.max_memory_gb``."""


class Shard(Protocol):
    """Executes calls of :class:`EnvGroup` methods and answers them in order."""

    def submit(self, method: str, *arguments: Any) -> None:
        """Start a call."""

    def result(self, seconds: float) -> Any:
        """Wait up to ``seconds`` for the next answer; the shard has ended after a death or a timeout.

        Raises:
            EnvError: An environment raised.
            EnvNotFiniteError: An environment returned NaN or inf.
            EnvProcessDiedError, EnvTimeoutError: The process died or hung, and has ended.
            EnvMemoryError: The process exceeded its memory during a long call, and has ended.
        """

    def excess(self) -> EnvMemoryError | None:
        """Return the error that says by how much the shard exceeds its memory, if it does."""

    def kill(self) -> object:
        """End at once, whatever is in flight."""

    def close(self) -> None:
        """Start closing."""

    def join(self, deadline: float) -> EnvError | None:
        """Finish closing, by force after ``deadline`` (monotonic clock); return the error of closing, if any."""


def _raise_or_return(answer: Any) -> Any:
    if isinstance(answer, EnvError | EnvNotFiniteError):
        raise answer
    return answer


class LocalShard:
    """Steps its environments in the calling process, at submission; its memory is not limited.

    Args:
        output: Limit of what the environments print.
        kind: Class of the environments' group.
    """

    def __init__(self, output: OutputLimit, kind: type[EnvGroup] = EnvGroup) -> None:
        self._group, self._output = kind(), output
        self._answers: deque[Any] = deque()

    def submit(self, method: str, *arguments: Any) -> None:
        """Execute a call."""
        try:
            with PrintingLimited(self._output), span(method, "environment"):
                self._answers.append(getattr(self._group, method)(*arguments))
        except (EnvError, EnvNotFiniteError) as error:
            self._answers.append(error)

    def result(self, seconds: float) -> Any:
        """Return the next answer; see :class:`Shard`."""
        del seconds  # the call has finished
        return _raise_or_return(self._answers.popleft())

    def excess(self) -> None:
        """Return None: the environments share the memory of their caller."""

    def kill(self) -> None:
        """Close the environments."""
        self._answers.clear()
        self._group.close()

    def close(self) -> None:
        """Close the environments."""
        self.submit("close")

    def join(self, deadline: float) -> EnvError | None:
        """Return the error of closing, if any."""
        del deadline  # closing has finished
        return next((answer for answer in self._answers if isinstance(answer, EnvError)), None)


class ProcessShard:
    """Steps its environments in a separate process.

    Args:
        rank: Number of the process for messages.
        busy_waits: True if the process and the caller poll for a moment before sleeping until the next message.
        max_bytes: Memory that the process and its children may use; None means no limit.
        output: Limit of what the environments print.
        kind: Class of the environments' group; its module's ``main`` runs it.
    """

    def __init__(
        self,
        rank: int,
        busy_waits: bool,
        max_bytes: float | None,
        output: OutputLimit,
        kind: type[EnvGroup] = EnvGroup,
    ) -> None:
        self._rank, self._busy_waits, self._max_bytes = rank, busy_waits, max_bytes
        self._next_measurement = 0.0
        self._output = OutputPipe(output)
        self._stacks = os.memfd_create("stacks")
        self._lifeline, theirs = os.pipe()  # the process lives while this end is open
        try:
            self._process, self._connection = start_child(
                kind.__module__,
                descriptors=[theirs, self._stacks],
                numbers=[int(busy_waits)],
                output=self._output.theirs,
                start_new_session=True,
            )
        except BaseException:
            self._close_files()
            raise
        finally:
            os.close(theirs)
            os.close(self._output.theirs)
        self._poll = select.poll()
        self._poll.register(self._connection.fileno(), select.POLLIN)
        self._poll.register(self._output.fileno(), select.POLLIN)

    def submit(self, method: str, *arguments: Any) -> None:
        """Send a call."""
        with contextlib.suppress(OSError):  # the process died; result() raises once the other shards have answered
            send(self._connection, (method, arguments))

    def result(self, seconds: float) -> Any:
        """Receive the next answer; see :class:`Shard`."""
        deadline = time.monotonic() + seconds
        if self._busy_waits:
            spin(self._poll)
        # A process that ends closes its socket, unless an environment left a child that holds the socket open.
        while not self._await_answer(min(1.0, deadline - time.monotonic())):
            if await_end(self._process.pid, seconds=0.0):
                raise self._death_error()
            if (excess := self.excess()) is not None:
                self.kill()
                raise excess
            if time.monotonic() >= deadline:
                raise self._timeout_error(seconds)
        try:
            answer = receive(self._connection)
        except (EOFError, OSError) as error:
            raise self._death_error() from error
        return _raise_or_return(answer)

    def _await_answer(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for an answer, which is then there to receive; pass on what is printed meanwhile."""
        deadline = time.monotonic() + seconds
        while True:
            events = dict(self._poll.poll(1000 * max(0.0, deadline - time.monotonic())))
            if self._output.fileno() in events and not self._output.forward():
                self._poll.unregister(self._output.fileno())  # nobody can print any more
            if self._connection.fileno() in events:
                return True
            if time.monotonic() >= deadline:
                return False

    def excess(self) -> EnvMemoryError | None:
        """Measure the memory, at most every :data:`MEASURE_SECONDS`; see :class:`Shard`."""
        if self._max_bytes is None or self._connection.closed or time.monotonic() < self._next_measurement:
            return None
        self._next_measurement = time.monotonic() + MEASURE_SECONDS
        used = private_bytes(self._process.pid)
        if used <= self._max_bytes:
            return None
        return EnvMemoryError(f"{self} uses {used / 1e9:.2f} GB, more than env.max_memory_gb={self._max_bytes / 1e9:g}")

    def _death_error(self) -> EnvProcessDiedError:
        await_end(self._process.pid, seconds=1.0)
        return EnvProcessDiedError(f"{self} died, exit code {self.kill()}")

    def _timeout_error(self, seconds: float) -> EnvTimeoutError:
        stacks = self._read_stacks()
        self.kill()
        return EnvTimeoutError(f"{self} did not answer within {seconds:g} s; it was at\n{stacks}")

    def __str__(self) -> str:
        return f"environment process {self._rank} (pid {self._process.pid})"

    def _read_stacks(self) -> str:
        """Return the stacks of its Python threads, even while native code holds the interpreter's lock."""
        self._process.send_signal(signal.SIGUSR1)
        size, deadline = 0, time.monotonic() + STACKS_SECONDS
        while time.monotonic() < deadline:
            time.sleep(0.1)
            before, size = size, os.fstat(self._stacks).st_size
            if 0 < before == size:
                break
        return os.pread(self._stacks, size, 0).decode(errors="replace").rstrip() or "an unknown place"

    def kill(self) -> int:
        """Kill the process and its children; return its exit code."""
        if not self._connection.closed:
            self._connection.close()
            with contextlib.suppress(ProcessLookupError):  # the pid is not reused before wait()
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._close_files()
        return self._process.wait()

    def _close_files(self) -> None:
        self._output.close()
        os.close(self._stacks)
        os.close(self._lifeline)

    def close(self) -> None:
        """Close the environments."""
        self.submit("close")

    def join(self, deadline: float) -> EnvError | None:
        """Wait for the process to end; see :class:`Shard`."""
        error = None
        if self._connection.closed:
            return None
        with contextlib.suppress(EOFError, OSError):  # raised when the process ends
            while self._await_answer(deadline - time.monotonic()):
                answer = receive(self._connection)
                error = answer if isinstance(answer, EnvError) else error
        await_end(self._process.pid, max(0.0, deadline - time.monotonic()))
        self.kill()
        return error
