"""The learning-rate schedule over a run's iterations."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from embodyflow.config.trainer import ScheduleConfig, TrainerConfig


def rates(iterations: int, **values: object) -> list[float]:
    schedule = ScheduleConfig.model_validate(values)
    return [schedule.fraction(iteration, iterations) for iteration in range(1, iterations + 1)]


def test_the_default_rate_is_constant() -> None:
    assert rates(5) == [1.0] * 5


def test_the_linear_schedule_warms_up_and_decays() -> None:
    assert rates(6, name="linear", warmup_iterations=2) == pytest.approx([1 / 3, 2 / 3, 1, 3 / 4, 1 / 2, 1 / 4])
    assert rates(4, name="linear", final_fraction=0.5) == pytest.approx([1, 7 / 8, 3 / 4, 5 / 8])


def test_the_cosine_schedule_decays() -> None:
    expected = [(1 + math.cos(math.pi * done / 4)) / 2 for done in range(4)]
    assert rates(4, name="cosine") == pytest.approx(expected)


@given(
    st.sampled_from(["constant", "linear", "cosine"]), st.integers(1, 30), st.integers(0, 40), st.floats(0, 1, width=32)
)
def test_every_rate_is_positive_and_at_most_the_full_rate(
    name: str, iterations: int, warmup: int, final: float
) -> None:
    final = 0.0 if name == "constant" else final
    values = rates(iterations, name=name, warmup_iterations=warmup, final_fraction=final)
    assert all(0 < value <= 1 for value in values)
    assert values[:warmup] == sorted(values[:warmup])
    assert values[warmup:] == sorted(values[warmup:], reverse=True)


def test_after_its_length_a_schedule_stays_at_its_last_value() -> None:
    schedule = ScheduleConfig(name="linear", warmup_iterations=1)
    values = [schedule.fraction(iteration, 5) for iteration in range(1, 9)]
    assert values == pytest.approx([1 / 2, 1, 3 / 4, 1 / 2, 1 / 4, 1 / 4, 1 / 4, 1 / 4])


def test_the_length_of_a_schedule_is_the_runs_unless_it_is_set() -> None:
    trainer = TrainerConfig(num_ranks=1, num_minibatches=1, learning_rate=1e-3, epochs=1, schedule={"name": "linear"})
    assert trainer.rate_fraction(7, 12) == pytest.approx(1 / 2)
    fixed = trainer.model_copy(update={"schedule_iterations": 8})
    assert fixed.rate_fraction(7, 12) == fixed.rate_fraction(7, 100) == pytest.approx(1 / 4)


def test_an_unknown_schedule_is_refused() -> None:
    with pytest.raises(ValidationError, match="'constant', 'linear' or 'cosine'"):
        ScheduleConfig.model_validate({"name": "step"})
