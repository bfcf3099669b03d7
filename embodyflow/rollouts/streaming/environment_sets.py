"""Sets of environments, each for episodes of one group at a time."""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import torch

from embodyflow.simulation.vector.env import VectorEnv

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

    def start(self, play: Callable[[VectorEnv], T], leave: Callable[[], None]) -> Future[T]:
        """Call a function with the environments, in their thread, and then another that says that they are idle."""
        return self._thread.submit(self._run, play, leave)

    def close(self) -> None:
        """Close the environments."""
        try:
            self._thread.submit(self._close).result()
        finally:
            self._thread.shutdown()

    def _run(self, play: Callable[[VectorEnv], T], leave: Callable[[], None]) -> T:
        try:
            if self._env is None:
                self._env = self._build(self.task)
            return play(self._env)
        finally:
            leave()

    def _close(self) -> None:
        if self._env is not None:
            self._env.close()


class EnvironmentSets:
    """Sets that any thread may use; a set that nobody uses gives way to one of a task that has less than its share.

    Args:
        build: Function from the index of a task to the environments of a set.
        limit: Most sets at a time.
        num_tasks: Number of tasks that share them.
    """

    def __init__(self, build: Callable[[int], VectorEnv], limit: int, num_tasks: int) -> None:
        self._build, self._limit, self._share = build, limit, -(-limit // num_tasks)
        self._idle: list[EnvironmentSet] = []  # the one that was used last comes last
        self._sets_of_task = Counter[int]()
        self._changed = threading.Condition()

    @property
    def num_sets(self) -> int:
        """Number of sets."""
        return self._sets_of_task.total()

    def start(self, task: int, play: Callable[[VectorEnv], T], timeout: float) -> Future[T]:
        """Wait for a set of a task, and call a function with its environments in their thread.

        Args:
            task: Index of the task.
            play: Function to call; the set is idle again when it returns or raises.
            timeout: Seconds to wait for a set.

        Returns:
            The result of the function, which may not be there yet.

        Raises:
            TimeoutError: No set was idle within this time.
            EnvError: The environments that give way failed to close.
        """
        chosen = self._take(task, timeout)
        return chosen.start(play, partial(self._leave, chosen))

    def close(self) -> None:
        """Close all environments, which must not be lent."""
        with self._changed:
            idle, self._idle = self._idle, []
            self._sets_of_task -= Counter(each.task for each in idle)
        for each in idle:
            each.close()

    def _leave(self, used: EnvironmentSet) -> None:
        with self._changed:
            self._idle.append(used)
            self._changed.notify_all()

    def _take(self, task: int, timeout: float) -> EnvironmentSet:
        with self._changed:
            if not self._changed.wait_for(lambda: self._fitting(task) or self._may_add(task), timeout):
                raise TimeoutError(f"no environments of task {task} were idle within {timeout:g} s")
            if fitting := self._fitting(task):
                self._idle.remove(fitting[-1])
                return fitting[-1]
            unused = self._idle.pop(0) if self.num_sets == self._limit else None
            self._sets_of_task[task] += 1
            if unused is not None:
                self._sets_of_task[unused.task] -= 1
        if unused is not None:
            self._close(unused, task)
        return EnvironmentSet(task, self._build)

    def _fitting(self, task: int) -> list[EnvironmentSet]:
        return [each for each in self._idle if each.task == task]

    def _may_add(self, task: int) -> bool:
        """Return True if a task has less than its share of the sets, and there is a place for a further one."""
        has_place = bool(self._idle) or self.num_sets < self._limit
        return has_place and self._sets_of_task[task] < self._share

    def _close(self, unused: EnvironmentSet, task: int) -> None:
        """Close a set whose place another task takes."""
        try:
            unused.close()
        except BaseException:
            with self._changed:
                self._sets_of_task[task] -= 1
                self._changed.notify_all()
            raise
