"""The process of an environment: it starts with the first episode, and another takes the place of one that ended."""

import asyncio
import contextlib
import itertools
import json
import os
import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from typing import IO, Any

from embodyflow.errors import InfrastructureError
from embodyflow.prompts.verifiers.environment_process import command, first_line, read_answer, start
from embodyflow.prompts.verifiers.verifiers_config import VerifiersConfig

Answer = Mapping[str, Any]
"""Line that the process writes when an episode has ended."""

MOST_LINES = 50
"""Number of last lines of stderr that are kept."""


class EnvironmentLostError(InfrastructureError):
    """The process of an environment has ended or failed to start in time, so its episodes are drawn again."""


class EnvironmentHost:
    """Plays episodes of an environment side by side, in one process for all event loops of this one.

    Args:
        config: Environment.
        max_turns: Most turns of an episode.

    Raises:
        ConfigError: There is no such Python.
    """

    def __init__(self, config: VerifiersConfig, max_turns: int) -> None:
        self._config = config
        self._command = command(config, "play")
        self._first = first_line(config, max_turns=max_turns)
        self._process: EnvironmentProcess | None = None

    async def process(self) -> "EnvironmentProcess":
        """Return the process once it has loaded the environment.

        Raises:
            ConfigError: The environment cannot be loaded.
            EnvironmentLostError: The process has ended, or does not load the environment in time.
        """
        if self._process is None or self._process.has_ended:
            self.close()
            self._process = EnvironmentProcess(self._config, self._command, self._first)
        process = self._process
        await process.wait_until_ready()
        return process

    def close(self) -> None:
        """End the process; a second call does nothing."""
        process, self._process = self._process, None
        if process is not None:
            process.close()


class _Inbox:
    """Answers that are still to come, by episode. Event loops and the thread that reads them share it."""

    def __init__(self) -> None:
        self._lock, self._waiting, self.is_closed = threading.Lock(), dict[int, Future[Answer]](), False

    def expect(self, number: int) -> "Future[Answer]":
        """Return the future of an answer, which is done at once if the inbox is closed."""
        future: Future[Answer] = Future()
        future.set_running_or_notify_cancel()  # an event loop that gives up does not cancel it under the thread
        with self._lock:
            if self.is_closed:
                future.set_exception(EnvironmentLostError("the process of the environment has ended"))
            else:
                self._waiting[number] = future
        return future

    def take(self, number: int) -> "Future[Answer] | None":
        """Return the future of an episode and forget it; ``None`` if nothing waits for its answer."""
        with self._lock:
            return self._waiting.pop(number, None)

    def close(self, error: Exception) -> None:
        """Fail the episodes that still wait."""
        with self._lock:
            self.is_closed = True
            left, self._waiting = list(self._waiting.values()), {}
        for future in left:
            future.set_exception(error)


class EnvironmentProcess:
    """One process, with threads that read what it writes.

    Args:
        config: Environment.
        command: Command of the process.
        first: First line for its stdin.
    """

    def __init__(self, config: VerifiersConfig, command: tuple[str, ...], first: bytes) -> None:
        self._config, self._numbers = config, itertools.count()
        theirs, self._ours = os.pipe()
        try:
            self._process = start(theirs, command)
        except BaseException:
            os.close(self._ours)
            raise
        finally:
            os.close(theirs)
        self._errors: deque[str] = deque(maxlen=MOST_LINES)
        self._inbox, self._ready = _Inbox(), Future[None]()
        self._ready.set_running_or_notify_cancel()
        self._write(first)
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._read_errors, self._read)]
        for thread in self._threads:
            thread.start()

    @property
    def has_ended(self) -> bool:
        """True if the process answers no more."""
        return self._inbox.is_closed

    async def wait_until_ready(self) -> None:
        """Wait until the environment is loaded.

        Raises:
            ConfigError: The environment cannot be loaded.
            EnvironmentLostError: The process has ended, or does not load the environment in time.
        """
        seconds = self._config.start_timeout
        try:
            await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(self._ready)), seconds)
        except TimeoutError as error:
            self.close()
            raise EnvironmentLostError(f"{self._name}: not loaded within start_timeout={seconds:g} seconds") from error

    async def play(self, task: Any, base_url: str, api_key: str) -> Answer:
        """Play an episode; cancelling it cancels the episode in the process.

        Args:
            task: Data of the task.
            base_url: Address of the model.
            api_key: Key of the episode.

        Raises:
            EnvironmentLostError: The process has ended.
        """
        number = next(self._numbers)
        answer = asyncio.wrap_future(self._inbox.expect(number))
        self._write({"episode": number, "task": task, "base_url": base_url, "api_key": api_key})
        try:
            return await answer
        finally:
            if self._inbox.take(number) is not None:
                self._write({"cancel": number})

    def close(self) -> None:
        """End the process and all that it started; a second call does nothing."""
        if self._ours >= 0:
            os.close(self._ours)
            self._ours = -1
        self._process.wait()
        for thread in self._threads:
            thread.join()

    @property
    def _name(self) -> str:
        return f"rollout.agent.verifiers={self._config.taskset}"

    def _write(self, line: bytes | Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        content = line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError):  # the thread that reads notices the end
            self._process.stdin.write(content)
            self._process.stdin.flush()

    def _read(self) -> None:
        """Read answers until the process ends."""
        assert self._process.stdout is not None
        first = self._process.stdout.readline()
        try:
            if first:
                read_answer(self._config, first, "")
                self._ready.set_result(None)
                self._read_answers(self._process.stdout)
        except Exception as error:
            if not self._ready.done():
                self._ready.set_exception(error)
        finally:
            self._process.wait()
            self._threads[0].join()
            last = f": {self._errors[-1]}" if self._errors else ""
            lost = EnvironmentLostError(f"{self._name}: its process has ended{last}")
            self._inbox.close(lost)
            if not self._ready.done():
                self._ready.set_exception(lost)

    def _read_answers(self, lines: IO[bytes]) -> None:
        for line in lines:
            answer = json.loads(line)
            if (waiting := self._inbox.take(answer["episode"])) is not None:
                waiting.set_result(answer)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors.append(line.decode(errors="replace").rstrip())
