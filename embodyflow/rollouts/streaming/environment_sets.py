"""Sets of environments, each for the episodes of one group at a time."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

from embodyflow.simulation.vector_env import VectorEnv

T = TypeVar("T")


class EnvironmentSet:
    """Environments of one task with a thread of their own, because some simulators draw in one thread only.

    Args:
        task: Index of the task.
        build: Function that builds the environments, called in that thread at the first use.
    """

    def __init__(self, task: int, build: Callable[[int], VectorEnv]) -> None:
        self.task, self._build = task, build
        self._env: VectorEnv | None = None
        # In PyTorch each thread has its own number of cores, on which the last bits of a product depend.
        self._thread = ThreadPoolExecutor(1, f"environments-{task}", torch.set_num_threads, (1,))

    def run(self, play: Callable[[VectorEnv], T]) -> T:
        """Call a function with the environments, in their thread, and return its result."""
        return self._thread.submit(self._run, play).result()

    def close(self) -> None:
        """Close the environments."""
        try:
            self._thread.submit(self._close).result()
        finally:
            self._thread.shutdown()

    def _run(self, play: Callable[[VectorEnv], T]) -> T:
        if self._env is None:
            self._env = self._build(self.task)
        return play(self._env)

    def _close(self) -> None:
        if self._env is not None:
            self._env.close()


class EnvironmentSets:
    """Sets that any thread may borrow; a set that nobody uses gives way to one of another task.

    Args:
        build: Function from the index of a task to the environments of a set.
        limit: Most sets at a time.
    """

    def __init__(self, build: Callable[[int], VectorEnv], limit: int) -> None:
        self._build, self._limit = build, limit
        self._idle: list[EnvironmentSet] = []  # the one that was used last comes last
        self._num_sets = 0
        self._changed = threading.Condition()

    @contextmanager
    def borrow(self, task: int, timeout: float) -> Iterator[EnvironmentSet]:
        """Lend a set of a task for the block.

        Args:
            task: Index of the task.
            timeout: Seconds to wait for a set while all are lent.

        Raises:
            TimeoutError: All sets are lent for longer.
            EnvError: The environments that give way failed to close.
        """
        lent = self._take(task, timeout)
        try:
            yield lent
        finally:
            with self._changed:
                self._idle.append(lent)
                self._changed.notify()

    def close(self) -> None:
        """Close all environments, which must not be lent."""
        with self._changed:
            idle, self._idle = self._idle, []
            self._num_sets -= len(idle)
        for each in idle:
            each.close()

    def _take(self, task: int, timeout: float) -> EnvironmentSet:
        with self._changed:
            if not self._changed.wait_for(lambda: self._idle or self._num_sets < self._limit, timeout):
                raise TimeoutError(f"no environments of task {task} were idle within {timeout:g} s")
            fitting = [each for each in self._idle if each.task == task]
            if fitting:
                self._idle.remove(fitting[-1])
                return fitting[-1]
            unused = self._idle.pop(0) if self._num_sets == self._limit else None
            self._num_sets += unused is None
        if unused is not None:
            self._replace(unused)
        return EnvironmentSet(task, self._build)

    def _replace(self, unused: EnvironmentSet) -> None:
        """Close a set whose place another takes."""
        try:
            unused.close()
        except BaseException:
            with self._changed:
                self._num_sets -= 1
                self._changed.notify()
            raise
