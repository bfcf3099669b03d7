"""SRPO's progress reward: numbers worked by hand, and properties that hold for any batch."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from embodyflow.rewards.progress.progress_config import ProgressConfig
from embodyflow.rewards.progress.progress_reward import Progress, find_centres, measure_progress

CONFIG = ProgressConfig()


def measure(points: list[float], success: list[int], tasks: list[int] | None = None) -> Progress:
    """Measure one-dimensional embeddings."""
    labels = np.array(tasks if tasks is not None else [0] * len(points))
    return measure_progress(np.array(points, np.float32)[:, None], np.array(success, bool), labels, CONFIG)


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_failures_score_by_standardised_distance_and_successes_score_one() -> None:
    # The points 0, 1, 2, 5 have mean 2 and deviation √((4 + 1 + 0 + 9)/4) = √(14/4), the unit of the distances to the
    # success at 0. The distances of the failures, 1, 2, 5, have mean 8/3 and deviation √(26/9).
    progress = measure([0, 1, 2, 5], [1, 0, 0, 0])
    np.testing.assert_allclose(progress.distances, np.array([0, 1, 2, 5]) / math.sqrt(3.5), rtol=1e-6)
    z = [(d - 8 / 3) / math.sqrt(26 / 9) for d in (1, 2, 5)]
    np.testing.assert_allclose(progress.scores, [1.0, *(0.8 * logistic(-each) for each in z)], rtol=1e-6)
    assert (progress.num_centres, progress.num_unreached) == (1, 0)


def test_the_nearest_of_several_centres_counts() -> None:
    # The successes at 0 and 0.1 form a cluster around 0.05; the success at 10 is a centre of its own.
    progress = measure([0, 0.1, 10, 1, 9, 5], [1, 1, 1, 0, 0, 0])
    assert progress.num_centres == 2
    unit = np.std([0, 0.1, 10, 1, 9, 5])
    np.testing.assert_allclose(progress.distances[3:] * unit, [0.95, 1.0, 4.95], rtol=1e-5)
    assert progress.scores[3] > progress.scores[4] > progress.scores[5]


def test_centres_are_means_of_clusters_and_isolated_points() -> None:
    points = np.array([[0.0], [0.4], [0.8], [3.0]])
    assert find_centres(points, eps=0.5, min_samples=2).tolist() == [[pytest.approx(0.4)], [3.0]]
    assert find_centres(points, eps=0.3, min_samples=2).tolist() == points.tolist()


def test_eps_means_the_same_in_any_number_of_dimensions() -> None:
    near = np.array([[0.0], [0.1], [4.0], [8.0]])
    for dimensions in (1, 9, 900):
        success, tasks = np.array([1, 1, 1, 0], bool), np.zeros(4, np.int64)
        progress = measure_progress(np.repeat(near, dimensions, axis=1), success, tasks, CONFIG)
        assert progress.num_centres == 2
        np.testing.assert_allclose(progress.distances[3], 4.0 / near.std(), rtol=1e-6)


def test_failures_of_a_task_without_success_score_zero_and_tasks_are_independent() -> None:
    progress = measure([0, 1, 2, 0, 1, 2], [0, 0, 0, 1, 0, 0], tasks=[0, 0, 0, 1, 1, 1])
    assert progress.scores[:4].tolist() == [0, 0, 0, 1]
    assert np.isinf(progress.distances[:3]).all()
    assert 0.8 > progress.scores[4] > progress.scores[5] > 0
    assert (progress.num_centres, progress.num_unreached) == (1, 1)


def test_failures_at_equal_distance_score_half_of_alpha() -> None:
    np.testing.assert_allclose(measure([0, 1, 1], [1, 0, 0]).scores, [1.0, 0.4, 0.4], rtol=1e-6)
    np.testing.assert_allclose(measure([3, 3, 3], [1, 0, 0]).scores, [1.0, 0.4, 0.4], rtol=1e-6)
    np.testing.assert_allclose(measure([0, 1], [1, 0]).scores, [1.0, 0.4], rtol=1e-6)


def test_rounding_noise_does_not_count_as_a_dimension() -> None:
    embeddings = np.array([[0.0, 7.0], [1.0, 7.0 + 5e-7], [3.0, 7.0 - 5e-7]], np.float32)
    progress = measure_progress(embeddings, np.array([1, 0, 0], bool), np.zeros(3, np.int64), CONFIG)
    np.testing.assert_allclose(progress.distances, measure([0, 1, 3], [1, 0, 0]).distances, rtol=1e-6)


SIZES = st.shared(st.integers(1, 12), key="rows")
BATCHES = st.tuples(
    SIZES.flatmap(lambda n: arrays(np.float32, (n, 3), elements=st.integers(-4, 4).map(lambda i: i / 2))),
    SIZES.flatmap(lambda n: arrays(bool, n)),
    SIZES.flatmap(lambda n: arrays(np.int64, n, elements=st.integers(0, 1))),
)


@settings(max_examples=40)
@given(BATCHES)
def test_scores_are_finite_and_bounded_and_fall_with_the_distance(batch) -> None:
    embeddings, success, tasks = batch
    progress = measure_progress(embeddings, success, tasks, CONFIG)
    assert (progress.scores[success] == 1).all() and (progress.distances[success] == 0).all()
    failed = progress.scores[~success]
    assert ((failed >= 0) & (failed < 0.8)).all()
    for task in (0, 1):
        lost = (tasks == task) & ~success
        order = np.argsort(progress.distances[lost], kind="stable")
        assert (np.diff(progress.scores[lost][order]) <= 1e-6).all()


@settings(max_examples=40)
@given(BATCHES, st.randoms(use_true_random=False))
def test_neither_order_nor_unit_of_the_embeddings_matters(batch, random) -> None:
    embeddings, success, tasks = batch
    expected = measure_progress(embeddings, success, tasks, CONFIG).scores
    order = list(range(len(success)))
    random.shuffle(order)
    units = np.array([1e-3, 1.0, 1e4])
    scores = measure_progress(embeddings[order] * units, success[order], tasks[order], CONFIG).scores
    np.testing.assert_allclose(scores, expected[order], atol=1e-5)


@settings(max_examples=40)
@given(BATCHES)
def test_duplicating_the_batch_does_not_change_scores(batch) -> None:
    """A duplicated success forms a cluster at the same place where it was a centre of its own."""
    embeddings, success, tasks = batch
    once = measure_progress(embeddings, success, tasks, CONFIG)
    twice = measure_progress(np.tile(embeddings, (2, 1)), np.tile(success, 2), np.tile(tasks, 2), CONFIG)
    np.testing.assert_allclose(twice.scores, np.tile(once.scores, 2), atol=1e-5)
