import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodyflow.data.confidence_intervals import wilson_interval


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [  # R's prop.test(..., correct = FALSE)
        (8, 10, 0.4901625, 0.9433178),
        (0, 10, 0.0, 0.2775328),
        (10, 10, 0.7224672, 1.0),
        (50, 100, 0.4038315, 0.5961685),
        (1, 1, 0.2065493, 1.0),
    ],
)
def test_known_intervals(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson_interval(successes, trials) == pytest.approx((low, high), abs=1e-6)


@given(st.integers(1, 500).flatmap(lambda trials: st.tuples(st.integers(0, trials), st.just(trials))))
def test_the_interval_contains_the_rate_mirrors_and_narrows(case: tuple[int, int]) -> None:
    successes, trials = case
    low, high = wilson_interval(successes, trials)
    assert 0.0 <= low < high <= 1.0
    assert low - 1e-12 <= successes / trials <= high + 1e-12
    assert wilson_interval(trials - successes, trials) == pytest.approx((1 - high, 1 - low), abs=1e-12)
    more_low, more_high = wilson_interval(4 * successes, 4 * trials)
    assert more_high - more_low < high - low


@pytest.mark.parametrize(("successes", "trials"), [(0, 0), (3, 2), (-1, 2), (0, -1)])
def test_impossible_counts_are_refused(successes: int, trials: int) -> None:
    with pytest.raises(ValueError, match="successes"):
        wilson_interval(successes, trials)
