import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodyflow.algorithms.filters import group_metrics, keep_mixed, keep_untruncated, keep_within

IDS = torch.tensor([8, 2, 8, 2, 5, 2**40])
SUCCESS = torch.tensor([True, True, False, True, False, False])

rows = st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=12)


def test_mixed_groups_and_single_rows_are_kept():
    assert keep_mixed(SUCCESS, IDS).tolist() == [True, False, True, False, True, True]
    assert keep_mixed(torch.tensor([0.5, 0.1, 0.5, 0.2, 1.0, 1.0]), IDS).tolist() == [
        False, True, False, True, True, True,
    ]  # fmt: skip


def test_equal_rewards_are_no_spread_whatever_their_rounding():
    """A deviation computed from a rounded mean is not 0 for 0.1, 0.1, 0.1."""
    assert not keep_mixed(torch.full((3,), 0.1, dtype=torch.float64), torch.zeros(3, dtype=torch.long)).any()


def test_bounds_are_inclusive():
    rate = torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.tensor([1, 1, 1, 1])
    assert keep_within(*rate, 0.25, 1.0).all()
    assert keep_within(*rate, 0.0, 0.25).all()
    assert not keep_within(*rate, 0.26, 1.0).any()
    assert not keep_within(*rate, 0.0, 0.24).any()


def test_one_truncated_row_drops_its_group():
    truncated = torch.tensor([False, False, True, False, False, True])
    assert keep_untruncated(truncated, IDS).tolist() == [False, True, False, True, True, False]


def test_fractions_are_of_groups():
    metrics = {name: (total.item(), count.item()) for name, (total, count) in group_metrics(SUCCESS, IDS).items()}
    assert metrics == {
        "groups/mixed_fraction": (1, 4),
        "groups/all_success_fraction": (1, 4),
        "groups/all_failure_fraction": (2, 4),
    }


@settings(max_examples=50, deadline=None)
@given(rows=rows, order_seed=st.integers(0, 99))
def test_groups_are_whole_and_order_does_not_matter(rows, order_seed):
    ids = torch.tensor([group for group, _ in rows])
    flags = torch.tensor([flag for _, flag in rows])
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(order_seed))
    for keep in (keep_mixed, keep_untruncated, lambda metric, group: keep_within(metric, group, 0.3, 0.7)):
        kept = keep(flags, ids)
        assert all(len(set(kept[ids == group].tolist())) == 1 for group in ids.unique())
        assert torch.equal(keep(flags[order], ids[order]), kept[order])


@settings(max_examples=50, deadline=None)
@given(rows=rows)
def test_keep_mixed_against_sets(rows):
    kept = keep_mixed(torch.tensor([flag for _, flag in rows]), torch.tensor([group for group, _ in rows]))
    for (group, _), keep in zip(rows, kept.tolist(), strict=True):
        outcomes = [flag for other, flag in rows if other == group]
        assert keep == (len(outcomes) == 1 or len(set(outcomes)) == 2)


def test_no_rows():
    nothing = torch.zeros(0, dtype=torch.bool), torch.zeros(0, dtype=torch.long)
    assert keep_mixed(*nothing).shape == (0,)
    assert group_metrics(*nothing)["groups/mixed_fraction"][1] == 0
