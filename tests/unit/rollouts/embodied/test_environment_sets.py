"""Sets of environments: which set a task gets, and which one gives way."""

from concurrent.futures import Future
from typing import Any

import pytest

from embodyflow.rollouts.streaming.environment_sets import EnvironmentSets


class Env:
    """Environments that note in a list when they are built and closed."""

    def __init__(self, task: int, events: list[str]) -> None:
        self._task, self._events = task, events
        events.append(f"{task} built")

    def close(self) -> None:
        self._events.append(f"{self._task} closed")


def sets_of(events: list[str], limit: int, num_tasks: int) -> EnvironmentSets:
    build: Any = lambda task: Env(task, events)  # noqa: E731
    return EnvironmentSets(build, limit, num_tasks)


def test_a_task_with_its_share_of_the_sets_takes_none_from_another() -> None:
    events, may_end = list[str](), Future[None]()
    sets = sets_of(events, limit=2, num_tasks=2)
    sets.start(1, lambda _: None, 10.0).result()
    busy = sets.start(0, lambda _: may_end.result(10.0), 10.0)
    with pytest.raises(TimeoutError, match=r"no environments of task 0 were idle within 0\.01 s"):
        sets.start(0, lambda _: None, 0.01)
    may_end.set_result(None)
    busy.result()
    sets.start(0, lambda _: None, 10.0).result()
    assert events == ["1 built", "0 built"]
    sets.close()
    assert events[2:] == ["1 closed", "0 closed"] and sets.num_sets == 0


def test_the_set_that_was_used_longest_ago_gives_way() -> None:
    events = list[str]()
    sets = sets_of(events, limit=2, num_tasks=3)
    for task in (0, 1, 0, 2, 0):
        sets.start(task, lambda _: None, 10.0).result()
    assert events == ["0 built", "1 built", "1 closed", "2 built"]
    sets.close()


def test_a_set_is_idle_again_after_an_error() -> None:
    sets = sets_of([], limit=1, num_tasks=1)
    failing = sets.start(0, lambda _: 1 / 0, 10.0)
    assert isinstance(failing.exception(), ZeroDivisionError)
    assert sets.start(0, lambda _: 7, 1.0).result() == 7
    sets.close()
