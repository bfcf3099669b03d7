import functools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from embodyflow.data.metrics import (
    Metric,
    Reduction,
    as_metrics,
    last,
    maximum,
    mean,
    merge_metrics,
    minimum,
    percentile,
    to_floats,
    total,
)

SAMPLES = st.lists(st.lists(st.floats(-1e3, 1e3), max_size=5), min_size=1, max_size=5).filter(any)
NOTHING = math.nan  # possible mean of a rank without samples


def merged(metrics: list[Metric]) -> Metric:
    return functools.reduce(Metric.merge, metrics)


@given(SAMPLES, st.randoms(use_true_random=False))
def test_means_of_ranks_merge_to_the_mean_of_all_samples_in_any_order(
    ranks: list[list[float]], random: "st.random.Random"
) -> None:
    samples = [sample for rank in ranks for sample in rank]
    metrics = [mean(sum(rank) / len(rank) if rank else NOTHING, len(rank)) for rank in ranks]
    random.shuffle(metrics)
    result = merged(metrics)
    assert result.value == pytest.approx(sum(samples) / len(samples), abs=1e-9)
    assert result.weight == len(samples)


@pytest.mark.parametrize(("declare", "reduce"), [(total, sum), (minimum, min), (maximum, max)])
@given(values=st.lists(st.floats(-1e3, 1e3), min_size=1), random=st.randoms(use_true_random=False))
def test_sums_and_extremes_merge_over_ranks_in_any_order(declare, reduce, values, random) -> None:
    metrics = [declare(value) for value in values]
    random.shuffle(metrics)
    assert merged(metrics).value == pytest.approx(reduce(values), abs=1e-9)


def test_last_takes_the_value_of_the_highest_rank() -> None:
    assert merged([last(1), last(5), last(3)]).value == 3


@given(SAMPLES, st.randoms(use_true_random=False), st.integers(0, 100))
def test_percentiles_of_ranks_merge_to_those_of_all_samples_in_any_order(
    ranks: list[list[float]], random: "st.random.Random", percent: int
) -> None:
    metrics = [percentile(rank, percent) for rank in ranks]
    random.shuffle(metrics)
    samples = sorted(sample for rank in ranks for sample in rank)
    position = percent / 100 * (len(samples) - 1)
    low, high = samples[math.floor(position)], samples[math.ceil(position)]
    assert merged(metrics).value == pytest.approx(low + (high - low) * (position % 1), abs=1e-9)


def test_a_mean_over_no_samples_is_omitted() -> None:
    nothing = merge_metrics([{"kl": mean(0.0, 0)}, {"kl": mean(0.0, 0)}])
    assert to_floats(nothing | {"rows": total(0)}) == {"rows": 0.0}
    assert to_floats(merge_metrics([nothing, {"kl": mean(0.5, 2)}])) == {"kl": 0.5}


def test_different_percentiles_do_not_merge() -> None:
    with pytest.raises(ValueError, match="percentile 50 and 90"):
        percentile([1], 50).merge(percentile([1], 90))


@pytest.mark.parametrize("other", [total, minimum, maximum, last])
def test_one_name_with_two_reductions_is_refused(other) -> None:
    with pytest.raises(ValueError, match="both mean and"):
        merge_metrics([{"reward": mean(1)}, {"reward": other(1)}])


def test_a_bare_number_is_a_mean_over_ranks_and_a_declared_metric_stays() -> None:
    metrics = as_metrics({"a": 2, "b": total(3)})
    assert metrics == {"a": Metric(Reduction.MEAN, 2.0, 1.0), "b": Metric(Reduction.SUM, 3.0)}
    assert to_floats(merge_metrics([metrics, as_metrics({"a": 4, "b": total(3)})])) == {"a": 3.0, "b": 6.0}


def test_a_metric_that_only_some_ranks_have_is_kept() -> None:
    assert to_floats(merge_metrics([{"b": mean(1)}, {"a": mean(2)}])) == {"a": 2.0, "b": 1.0}


@pytest.mark.parametrize("value", ["many", None, torch.ones(2)])
def test_a_value_that_is_not_a_number_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="the metric 'a' must be a number or a Metric, is "):
        as_metrics({"b": 1.0, "a": value})


@pytest.mark.parametrize("declare", [total, minimum, maximum])
def test_a_number_that_is_none_on_one_rank_is_none_for_all(declare) -> None:
    for values in ((math.nan, 1.0, 2.0), (1.0, math.nan, 2.0), (1.0, 2.0, math.nan)):
        assert math.isnan(merged([declare(value) for value in values]).value)
