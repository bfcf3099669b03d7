"""When the number of rollout workers changes: within its bounds, by one, and never to and fro under one load."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodyflow.config.autoscale import AutoscaleConfig
from embodyflow.orchestration.run.scaling.rule import Waits, idle_without_one, next_number

SHARES = st.floats(0, 1)
THRESHOLDS = st.floats(0.01, 0.99)


@st.composite
def settings_of(draw: st.DrawFn) -> AutoscaleConfig:
    fewest, more = draw(st.integers(1, 5)), draw(st.integers(0, 6))
    return AutoscaleConfig(
        min_workers=fewest,
        max_workers=fewest + more,
        trainer_wait=draw(THRESHOLDS),
        rollout_idle=draw(THRESHOLDS),
        patience=draw(st.integers(1, 4)),
    )


@st.composite
def situations(draw: st.DrawFn) -> tuple[AutoscaleConfig, int]:
    settings = draw(settings_of())
    return settings, draw(st.integers(settings.min_workers, settings.max_workers))


WAITS = st.lists(st.builds(Waits, st.integers(1, 11), SHARES, SHARES), max_size=8)


@given(situations(), WAITS)
def test_the_number_stays_in_its_bounds_and_changes_by_one(
    situation: tuple[AutoscaleConfig, int], waits: Sequence[Waits]
) -> None:
    settings, number = situation
    after = next_number(number, waits, settings)
    assert settings.min_workers <= after <= settings.max_workers
    assert abs(after - number) <= 1


@given(situations(), WAITS)
def test_a_change_needs_as_many_iterations_with_the_present_number_as_patience(
    situation: tuple[AutoscaleConfig, int], waits: Sequence[Waits]
) -> None:
    settings, number = situation
    if next_number(number, waits, settings) != number:
        assert sum(each.num_workers == number for each in waits) >= settings.patience


@given(situations(), SHARES, SHARES, SHARES, SHARES)
def test_longer_waits_of_the_trainer_and_busier_workers_never_lower_the_number(
    situation: tuple[AutoscaleConfig, int], trainer: float, longer: float, idle: float, busier: float
) -> None:
    settings, number = situation
    before = [Waits(number, min(trainer, longer), max(idle, busier))] * settings.patience
    after = [Waits(number, max(trainer, longer), min(idle, busier))] * settings.patience
    assert next_number(number, before, settings) <= next_number(number, after, settings)


def numbers(settings: AutoscaleConfig, first: int, waits_of: dict[int, Waits]) -> list[int]:
    """Return the numbers of many iterations, of which each waits as its number of workers says."""
    found, waits = [first], list[Waits]()
    for _ in range(12 * settings.patience):
        waits.append(waits_of[found[-1]])
        found.append(next_number(found[-1], waits, settings))
    return found


def assert_goes_one_way(found: Sequence[int]) -> None:
    steps = {after - before for before, after in pairwise(found)}
    assert not {1, -1} <= steps, "the number goes to and fro"
    assert found[-1] == found[-2], "the number does not come to rest"


@given(situations(), SHARES, SHARES)
def test_constant_waits_move_the_number_one_way(
    situation: tuple[AutoscaleConfig, int], trainer: float, rollout: float
) -> None:
    settings, first = situation
    waits = {number: Waits(number, trainer, rollout) for number in range(1, 12)}
    assert_goes_one_way(numbers(settings, first, waits))


@given(situations(), st.floats(0.05, 20))
def test_a_constant_load_moves_the_number_one_way(situation: tuple[AutoscaleConfig, int], work: float) -> None:
    """Rollouts take ``work`` on one worker and less on several; training takes 1, and both run side by side."""
    settings, first = situation
    waits = {}
    for number in range(1, 12):
        seconds = max(1.0, work / number)
        waits[number] = Waits(number, 1.0 - 1.0 / seconds, 1.0 - work / number / seconds)
    assert_goes_one_way(numbers(settings, first, waits))


@pytest.mark.parametrize(
    ("number", "trainer", "rollout", "expected"),
    [
        (2, 0.5, 0.0, 3),  # the trainer waits
        (2, 0.0, 0.9, 1),  # one worker is enough, and has time left
        (2, 0.0, 0.5, 2),  # one worker is just enough
        (4, 0.0, 0.5, 3),
        (2, 0.5, 0.9, 2),  # a long episode holds up all
        (4, 0.5, 0.0, 4),
        (1, 0.0, 1.0, 1),
    ],
)
def test_waits_start_and_end_workers(number: int, trainer: float, rollout: float, expected: int) -> None:
    settings = AutoscaleConfig(max_workers=4)
    waits = [Waits(number, trainer, rollout)] * settings.patience
    assert next_number(number, waits, settings) == expected
    assert next_number(number, waits[1:], settings) == number, "one iteration is not enough"


def test_the_idle_share_without_a_worker_is_that_of_the_same_work() -> None:
    assert idle_without_one(Waits(2, 0.0, 0.75)) == pytest.approx(0.5)
    assert idle_without_one(Waits(1, 0.0, 1.0)) == float("-inf")
