import pytest
import torch

from embodyflow.algorithms.algorithm_config import OverlongConfig
from embodyflow.algorithms.credit.shaping import overlong_penalty, place_on_last_token


def test_score_lands_on_the_last_token_inside():
    mask = torch.tensor([[True, False, True, False], [True, False, False, False], [False] * 4])
    rewards = place_on_last_token(torch.tensor([2.0, -1.0, 0.0]), mask)
    assert rewards.tolist() == [[0.0, 0.0, 2.0, 0.0], [-1.0, 0.0, 0.0, 0.0], [0.0] * 4]


def test_rows_that_are_all_empty_have_no_rewards():
    assert place_on_last_token(torch.zeros(2), torch.zeros(2, 0, dtype=torch.bool)).shape == (2, 0)


def test_a_score_is_never_lost():
    with pytest.raises(ValueError, match=r"rows \[1\] have a score but no token"):
        place_on_last_token(torch.tensor([1.0, 1.0]), torch.tensor([[True], [False]]))


def test_overlong_penalty_by_hand():
    lengths = torch.tensor([10, 60, 70, 80, 100, 120])
    penalty = overlong_penalty(lengths, max_tokens=100, config=OverlongConfig(buffer=40, penalty=2.0))
    assert penalty.tolist() == pytest.approx([0.0, 0.0, -0.5, -1.0, -2.0, -2.0])
