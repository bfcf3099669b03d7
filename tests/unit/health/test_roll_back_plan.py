"""When a roll-back is done and where it returns to, as functions of the roll-backs before it."""

import pytest

from embodyflow.health.history import Finding
from embodyflow.health.roll_back_plan import Done, due, target_of, wanted_commit

AFTER_ONE = [Done(9, 6)]
AFTER_TWO = [Done(9, 6), Done(7, 3)]


def finding(healthy: int | None = None) -> Finding:
    return Finding("policy/old_kl", 1.0, 0.1, "", healthy=healthy)


@pytest.mark.parametrize(
    ("found", "earlier", "at"),
    [
        (9, [], 9),
        (7, AFTER_ONE, 10),
        (12, AFTER_ONE, 15),
        (13, AFTER_ONE, 13),  # the run has passed the earlier finding by more than three iterations
        (4, AFTER_TWO, 10),  # twice as long the second time in a row
        (11, AFTER_TWO, 11),
        (30, [Done(9, 6), Done(28, 25)], 33),  # the first one was long before
    ],
)
def test_a_finding_that_comes_again_waits(found: int, earlier: list[Done], at: int) -> None:
    assert due(found, 3, earlier) == at


@pytest.mark.parametrize(
    ("found", "earlier", "healthy", "wanted"),
    [
        (9, [], None, 6),
        (9, [], 4, 4),  # the damage lies between the best evaluation and the newest
        (9, [], 8, 6),
        (9, AFTER_ONE, None, 3),  # iteration 6 may be damaged already
        (7, AFTER_ONE, None, 3),
        (13, AFTER_ONE, None, 10),
        (8, [Done(12, 9), Done(9, 6)], None, 3),
        (2, [], None, 0),
        (4, AFTER_TWO, None, 0),
    ],
)
def test_the_commit_that_is_wanted(found: int, earlier: list[Done], healthy: int | None, wanted: int) -> None:
    assert wanted_commit(finding(healthy), found, 3, earlier) == wanted


@pytest.mark.parametrize(
    ("committed", "wanted", "found", "staleness", "target"),
    [
        ([0, 3, 4, 5, 6], 4, 6, 0, 4),
        ([0, 1, 2], 0, 2, 0, 0),
        ([0, 4, 5], 2, 5, 0, 4),  # an earlier roll-back has left no more
        ([0, 3, 4], 5, 6, 0, 4),
        ([0, 3, 4, 5, 6], 4, 6, 1, 4),
        ([0, 4, 5, 6], 4, 6, 1, 5),  # the rollouts after 4 need version 3
        ([0], 2, 3, 0, 0),
        ([0, 5], 3, 5, 0, 0),
    ],
)
def test_the_commit_that_a_run_returns_to(
    committed: list[int], wanted: int, found: int, staleness: int, target: int
) -> None:
    assert target_of(committed, wanted, found, staleness) == target
