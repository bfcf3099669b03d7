import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodyflow.data.plans.partition import attention_cost, consecutive_share, imbalance, karmarkar_karp

COSTS = st.lists(st.integers(0, 1000), max_size=40)
PARTS = st.integers(1, 9)


def loads_of(costs: object, parts: np.ndarray, num_parts: int) -> np.ndarray:
    return np.bincount(parts, np.asarray(costs, float), num_parts)


def test_differencing_by_hand() -> None:
    # 8−7=1, 6−5=1, 4, 1, 1 → 4−1=3, 1 → 2: the sums differ by 2, as in the example of Karmarkar and Karp
    assert sorted(loads_of([8, 7, 6, 5, 4], karmarkar_karp([8, 7, 6, 5, 4], 2), 2)) == [14, 16]


@given(COSTS, PARTS)
def test_every_item_gets_one_part_and_no_part_is_heavier_than_greedy_allows(costs: list[int], num_parts: int) -> None:
    parts = karmarkar_karp(costs, num_parts)
    assert parts.shape == (len(costs),) and all(0 <= part < num_parts for part in parts)
    heaviest = loads_of(costs, parts, num_parts).max()
    # No part exceeds the mean by more than one item, the largest.
    assert heaviest <= sum(costs) / num_parts + max(costs, default=0)


@given(st.integers(0, 700), PARTS)
def test_items_of_equal_cost_give_parts_of_equal_size(num_items: int, num_parts: int) -> None:
    counts = np.bincount(karmarkar_karp(np.ones(num_items), num_parts), minlength=num_parts)
    assert np.ptp(counts) <= 1


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8))
def test_two_parts_of_few_items_come_close_to_the_best_split(costs: list[int]) -> None:
    signs = np.array(list(itertools.product([-1, 1], repeat=len(costs))))
    best = np.abs(signs @ np.array(costs)).min()
    found = np.ptp(loads_of(costs, karmarkar_karp(costs, 2), 2))
    assert best <= found and found / 2 + sum(costs) / 2 <= 7 / 6 * (sum(costs) + best) / 2 + 1e-9  # the known bound


@pytest.mark.parametrize(("num_parts", "sigma"), [(2, 1.0), (8, 1.0), (64, 0.5)])
def test_log_normal_lengths_are_balanced_to_two_percent(num_parts: int, sigma: float) -> None:
    costs = attention_cost(np.random.default_rng(0).lognormal(6.0, sigma, 10_000))
    assert imbalance(loads_of(costs, karmarkar_karp(costs, num_parts), num_parts)) <= 0.02


def test_attention_cost_grows_faster_than_the_number_of_tokens() -> None:
    assert attention_cost([0, 1, 10], hidden_size=2).tolist() == [0, 13, 220]


def test_imbalance_is_the_heaviest_parts_excess() -> None:
    assert imbalance([1, 2, 3]) == pytest.approx(0.5)
    assert imbalance([0, 0]) == 0.0


@given(st.integers(0, 200), st.integers(1, 40))
def test_consecutive_shares_hold_every_item_once_and_differ_by_at_most_one(num_items: int, num_parts: int) -> None:
    shares = [consecutive_share(num_items, rank, num_parts) for rank in range(num_parts)]
    assert [item for share in shares for item in share] == list(range(num_items))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


def test_consecutive_shares_are_cut_where_hand_and_pencil_cut_them() -> None:
    assert [list(consecutive_share(5, rank, 3)) for rank in range(3)] == [[0], [1, 2], [3, 4]]
    assert [list(consecutive_share(2, rank, 3)) for rank in range(3)] == [[], [0], [1]]
