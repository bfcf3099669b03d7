"""Soft actor-critic's targets and losses, against numbers worked out by hand."""

import math

import pytest
import torch
from torch import tensor

from embodyflow.algorithms.off_policy import (
    POOLS,
    actor_loss,
    critic_loss,
    n_step_returns,
    soft_targets,
    temperature_loss,
)


def test_returns_over_steps_stop_where_the_mask_does() -> None:
    rewards = tensor([[1.0, 2.0, 4.0], [1.0, 2.0, 4.0]])
    returns, discounts = n_step_returns(rewards, tensor([[True, True, True], [True, True, False]]), 0.5)
    assert returns.tolist() == [1 + 0.5 * 2 + 0.25 * 4, 1 + 0.5 * 2]
    assert discounts.tolist() == [0.125, 0.25]


def test_targets_take_the_least_value_less_the_cost_of_a_log_prob() -> None:
    values = tensor([[10.0, 3.0], [8.0, 5.0]])
    targets = soft_targets(tensor([1.0, 2.0]), tensor([0.9, 0.0]), values, tensor([-1.0, 7.0]), tensor(0.5))
    torch.testing.assert_close(targets, tensor([1 + 0.9 * (8 + 0.5), 2.0]))  # the second has terminated


def test_each_critic_pays_half_its_mean_squared_error() -> None:
    values = tensor([[1.0, 3.0], [0.0, 2.0]])
    # Errors of 1, 1 and of 0, 0: half of 1, plus 0.
    assert critic_loss(values, tensor([0.0, 2.0])).item() == 0.5
    # Errors of 1, 3 and of 0, 2: half of 5, plus half of 2.
    assert critic_loss(values, tensor([0.0, 0.0])).item() == 3.5


def test_the_policy_weighs_entropy_against_a_value() -> None:
    values = tensor([[1.0, 6.0], [2.0, 4.0]])
    least, mean = (POOLS[name](values) for name in ("least", "mean"))
    assert actor_loss(tensor([-2.0, 1.0]), least, tensor(0.5)).item() == ((-1 - 1) + (0.5 - 4)) / 2
    assert actor_loss(tensor([-2.0, 1.0]), mean, tensor(0.5)).item() == ((-1 - 1.5) + (0.5 - 5)) / 2


@pytest.mark.parametrize(("log_prob", "gradient"), [(3.0, -1.0), (1.0, 1.0)])
def test_the_temperature_rises_below_the_target_entropy(log_prob: float, gradient: float) -> None:
    log_temperature = tensor(math.log(0.5), requires_grad=True)
    loss = temperature_loss(log_temperature, tensor([log_prob, log_prob]), -2.0)
    loss.backward()
    assert loss.item() == pytest.approx(-math.log(0.5) * (log_prob - 2))
    assert log_temperature.grad is not None and log_temperature.grad.item() == gradient
