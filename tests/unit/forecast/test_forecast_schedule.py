"""Iterations in their orders, against schedules computed by hand."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodyflow.forecast.forecast import Forecast, forecast
from embodyflow.forecast.machine import Machine
from embodyflow.forecast.record import Cost, Sample
from embodyflow.forecast.schedule import Shape
from embodyflow.graph import Pipeline, TaskGraph


def two_nodes() -> TaskGraph:
    """Return a rollout and a training."""
    pipeline = Pipeline("two")
    pipeline.add_node("rollout", func="tasks:generate", deps=[])
    pipeline.add_node("train", func="tasks:train_actor", deps=["rollout"], reads=[])
    return pipeline.build()


def sample(rollout: float, train: float, commit: float = 0.0, between: float = 0.0, **beside: Cost) -> Sample:
    """Return an iteration whose nodes compute all the time."""
    nodes = {"rollout": Cost(rollout, rollout), "train": Cost(train, train)}
    return Sample(nodes, Cost(between, between), Cost(commit, commit), **beside)


def of(shape: Shape, each: Sample, cores: float = math.inf, services: float = 0.0) -> Forecast:
    return forecast(two_nodes(), [each], shape, machine=Machine(cores, services, sharing=0.0), simulations=1)


def test_synchronous_iterations_follow_each_other() -> None:
    found = of(Shape(2, 1), sample(6.0, 3.0, commit=1.0, between=0.5))
    assert found.seconds == pytest.approx(0.5 + 6 + 0.5 + 3 + 1)
    assert (found.low, found.high) == (pytest.approx(found.seconds), pytest.approx(found.seconds))
    assert found.idle == {"rollout": pytest.approx(1 - 6 / 11), "trainer": pytest.approx(1 - 3 / 11)}


@pytest.mark.parametrize("staleness", [1, 2])
def test_ahead_the_longer_side_decides(staleness: int) -> None:
    """One ahead is enough to overlap: rollout i waits for the commit of i − 2, and for the rollout before."""
    assert of(Shape(1, 1, staleness), sample(6.0, 3.0, 1.0)).seconds == pytest.approx(6)
    assert of(Shape(1, 1, staleness), sample(2.0, 3.0, 1.0)).seconds == pytest.approx(4)


def test_ahead_two_sides_share_the_cores() -> None:
    """On one core there is nothing to overlap; on two there is."""
    assert of(Shape(1, 1, 1), sample(2.0, 2.0), cores=1).seconds == pytest.approx(4)
    assert of(Shape(1, 1, 1), sample(2.0, 2.0), cores=2).seconds == pytest.approx(2)
    assert of(Shape(2, 1, 1), sample(2.0, 2.0), cores=2).seconds == pytest.approx(3)


def test_a_checkpoint_takes_cores_from_the_next_rollout() -> None:
    """Three processes on two cores have 2/3 each until the checkpoint is written after 0.75 s; then 0.5 s are left."""
    each = sample(1.0, 1.0, checkpoint=Cost(0.5, 0.5))
    assert of(Shape(2, 1), each, cores=2).seconds == pytest.approx(1.25 + 1.0)
    assert of(Shape(2, 1), each, cores=3).seconds == pytest.approx(2.0)
    later = sample(1.0, 1.0, between=0.5, checkpoint=Cost(0.5, 0.5))
    assert of(Shape(2, 1), later, cores=2).seconds == pytest.approx(0.5 + 1.25 + 0.5 + 1.0), (
        "it begins with the rollout"
    )


def test_the_trainer_writes_its_checkpoint_before_its_next_node() -> None:
    each = sample(1.0, 2.0, checkpoint=Cost(0.5, 0.5))
    assert of(Shape(1, 1, 1), each).seconds == pytest.approx(2.5), "ahead no rollout is in between"


def test_services_take_cores_from_nodes_that_fill_them() -> None:
    """Of two cores services of half a core leave 1.5 to two ranks, and one core to one worker."""
    assert of(Shape(1, 2), sample(1.0, 1.5), cores=2, services=0.5).seconds == pytest.approx(1.0 + 2.0)
    assert of(Shape(1, 2), sample(1.0, 1.5), cores=3, services=0.5).seconds == pytest.approx(1.0 + 1.5)


def test_a_second_version_absorbs_uneven_iterations() -> None:
    """Of alternating costs (rollout 1 and 3 s, training 3 and 1 s) two ahead hide more than one ahead."""
    samples = [sample(1.0, 3.0), sample(3.0, 1.0)]
    one, two = (forecast(two_nodes(), samples, Shape(1, 1, staleness)) for staleness in (1, 2))
    assert 2.0 <= two.seconds <= one.seconds


def test_in_streaming_no_worker_waits_for_the_slowest() -> None:
    """Three groups on two workers: whole iterations take two turns of 1 s, groups of several iterations 1.5 s."""
    found = of(Shape(2, 1, 1, num_groups=3), sample(1.5, 0.1))
    assert found.seconds == pytest.approx(1.5) and found.idle["rollout"] == pytest.approx(0.0, abs=0.1)


def test_turns_on_the_same_devices_do_not_overlap() -> None:
    found = of(Shape(8, 8, staleness=1, takes_turns=True), sample(6.0, 3.0, 1.0))
    assert found.seconds == pytest.approx(10)
    assert found.idle == {"devices": pytest.approx(0.1)}


def test_a_forecast_is_repeatable_and_its_range_covers_its_median() -> None:
    samples = [sample(rollout, 1.0) for rollout in (1.0, 2.0, 4.0, 4.5)]
    one, again = (forecast(two_nodes(), samples, Shape(1, 1), seed=3) for _ in range(2))
    assert (one.seconds, one.low, one.high) == (again.seconds, again.low, again.high)
    assert 2.0 <= one.low < one.seconds < one.high <= 5.5


@given(
    costs=st.tuples(st.floats(0.1, 9), st.floats(0.1, 9), st.floats(0, 2)),
    staleness=st.integers(0, 2),
    cores=st.sampled_from([1.0, 2.0, 4.0, math.inf]),
)
@settings(deadline=None, max_examples=25)
def test_an_iteration_takes_no_less_than_its_sides_and_no_more_than_their_sum(
    costs: tuple[float, float, float], staleness: int, cores: float
) -> None:
    rollout, train, commit = costs
    found = of(Shape(1, 1, staleness), sample(*costs), cores).seconds
    assert max(rollout, train + commit) - 1e-6 <= found <= rollout + train + commit + 1e-6


@given(workers=st.integers(1, 6), cores=st.sampled_from([1.0, 2.0, 16.0]), staleness=st.integers(0, 2))
@settings(deadline=None, max_examples=25)
def test_more_workers_for_the_same_rows_are_never_slower(workers: int, cores: float, staleness: int) -> None:
    """Each of n workers has an n-th of the rows; without cores for them they gain nothing."""
    few, more = (
        of(Shape(number, 1, staleness), sample(12.0 / number, 1.0), cores).seconds for number in (workers, workers + 1)
    )
    assert more <= few + 1e-6
