"""Part of a vector environment's environments: stepped in the calling process, or in a process of their own."""

import contextlib
import os
import select
import signal
import time
from collections import deque
from typing import Any, Protocol

from embodyflow.errors import InfrastructureError
from embodyflow.process.child import await_end, receive, send, spin, start_child
from embodyflow.simulation.vector_env_worker import EnvError, EnvGroup, EnvNotFiniteError

STACKS_SECONDS = 1.0
"""How long a process that hangs has for saying where."""


class EnvProcessDiedError(InfrastructureError):
    """A process with environments ended by itself: killed, out of memory, crashed in native code."""


class EnvTimeoutError(InfrastructureError):
    """A process with environments did not answer in time; the message shows where it was."""


class Shard(Protocol):
    """Takes calls of :class:`EnvGroup` methods and answers them in order."""

    def submit(self, method: str, *arguments: Any) -> None:
        """Begin a call."""

    def result(self, seconds: float) -> Any:
        """Wait so long for the next answer; after an error of infrastructure nothing of the shard is left.

        Raises:
            EnvError: an environment raised.
            EnvNotFiniteError: an environment gave a number that is none.
            EnvProcessDiedError, EnvTimeoutError: the process is gone.
        """

    def kill(self) -> object:
        """End at once, whatever is going on."""

    def close(self) -> None:
        """Begin to close."""

    def join(self, deadline: float) -> EnvError | None:
        """Finish closing, by force from ``deadline`` (of the monotonic clock) on; return what went wrong."""


def _opened(answer: Any) -> Any:
    if isinstance(answer, EnvError | EnvNotFiniteError):
        raise answer
    return answer


class InProcess:
    """Steps its environments in the calling process, at submission."""

    def __init__(self) -> None:
        self._group = EnvGroup()
        self._answers: deque[Any] = deque()

    def submit(self, method: str, *arguments: Any) -> None:
        """Do a call."""
        try:
            self._answers.append(getattr(self._group, method)(*arguments))
        except (EnvError, EnvNotFiniteError) as error:
            self._answers.append(error)

    def result(self, seconds: float) -> Any:
        """Return the next answer; see :class:`Shard`."""
        del seconds  # it is done
        return _opened(self._answers.popleft())

    def kill(self) -> None:
        """Close the environments."""
        self._answers.clear()
        self._group.close()

    def close(self) -> None:
        """Close the environments."""
        self.submit("close")

    def join(self, deadline: float) -> EnvError | None:
        """Return what went wrong when they were closed."""
        del deadline  # nothing runs any more
        return next((answer for answer in self._answers if isinstance(answer, EnvError)), None)


class WorkerProcess:
    """Steps its environments in a process of its own.

    Args:
        rank: for messages.
        stays_awake: whether it and the caller expect each other's messages awake.
    """

    def __init__(self, rank: int, stays_awake: bool) -> None:
        self._rank, self._stays_awake = rank, stays_awake
        self._stacks = os.memfd_create("stacks")
        self._lifeline, theirs = os.pipe()  # while we have our end the process lives
        try:
            self._process, self._connection = start_child(
                EnvGroup.__module__,
                descriptors=[theirs, self._stacks],
                numbers=[int(stays_awake)],
                start_new_session=True,
            )
        except BaseException:
            self._forget_files()
            raise
        finally:
            os.close(theirs)
        self._poll = select.poll()
        self._poll.register(self._connection.fileno(), select.POLLIN)

    def submit(self, method: str, *arguments: Any) -> None:
        """Send a call."""
        with contextlib.suppress(OSError):  # it died: result() says so, once the others have answered
            send(self._connection, (method, arguments))

    def result(self, seconds: float) -> Any:
        """Receive the next answer; see :class:`Shard`."""
        deadline = time.monotonic() + seconds
        if self._stays_awake:
            spin(self._poll)
        # The end of the process ends the socket too, unless an environment left a child that holds it open.
        while not self._poll.poll(1000 * max(0.0, min(1.0, deadline - time.monotonic()))):
            if await_end(self._process.pid, seconds=0.0):
                raise self._died()
            if time.monotonic() >= deadline:
                raise self._overdue(seconds)
        try:
            answer = receive(self._connection)
        except (EOFError, OSError) as error:
            raise self._died() from error
        return _opened(answer)

    def _died(self) -> EnvProcessDiedError:
        await_end(self._process.pid, seconds=1.0)
        return EnvProcessDiedError(f"{self} died, exit code {self.kill()}")

    def _overdue(self, seconds: float) -> EnvTimeoutError:
        stacks = self._where_it_is()
        self.kill()
        return EnvTimeoutError(f"{self} did not answer within {seconds:g} s; it was at\n{stacks}")

    def __str__(self) -> str:
        return f"environment process {self._rank} (pid {self._process.pid})"

    def _where_it_is(self) -> str:
        """Return the stack of each of its Python threads, also while native code keeps the interpreter's lock."""
        self._process.send_signal(signal.SIGUSR1)
        size, deadline = 0, time.monotonic() + STACKS_SECONDS
        while time.monotonic() < deadline:
            time.sleep(0.1)
            before, size = size, os.fstat(self._stacks).st_size
            if 0 < before == size:
                break
        return os.pread(self._stacks, size, 0).decode(errors="replace").rstrip() or "a place that it does not tell"

    def kill(self) -> int:
        """End it with all it has started; return its exit code."""
        if not self._connection.closed:
            self._connection.close()
            with contextlib.suppress(ProcessLookupError):  # until it is waited for its number is its own
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._forget_files()
        return self._process.wait()

    def _forget_files(self) -> None:
        os.close(self._stacks)
        os.close(self._lifeline)

    def close(self) -> None:
        """Close the environments."""
        self.submit("close")

    def join(self, deadline: float) -> EnvError | None:
        """Wait until it has ended; see :class:`Shard`."""
        error = None
        if self._connection.closed:
            return None
        with contextlib.suppress(EOFError, OSError):  # the end of the process
            while self._poll.poll(1000 * max(0.0, deadline - time.monotonic())):
                answer = receive(self._connection)
                error = answer if isinstance(answer, EnvError) else error
        await_end(self._process.pid, max(0.0, deadline - time.monotonic()))
        self.kill()
        return error
