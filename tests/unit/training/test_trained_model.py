"""Optimizer steps and gradient clipping of a model on one rank, bit by bit those of torch."""

import copy
import math

import pytest
import torch
from torch import nn

from embodyflow.config.trainer import TrainerConfig
from embodyflow.training.parallel.sharding import clip_gradients
from embodyflow.training.trained_model import TrainedModel

RATE = 3e-3


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(7, 16), nn.Tanh(), nn.Linear(16, 2))


def backward(model: nn.Module, seed: int) -> None:
    """Give every parameter a fresh gradient."""
    model.zero_grad()
    states = torch.randn(32, 7, generator=torch.Generator().manual_seed(seed))
    model(states).square().mean().backward()


def same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("missing", [False, True])
def test_steps_are_those_of_torch_after_a_restored_checkpoint_too(missing: bool) -> None:
    """A rate that changes, weight decay and a parameter without a gradient change nothing about that."""
    config = TrainerConfig(
        learning_rate=RATE, epochs=1, num_ranks=1, num_minibatches=1, weight_decay=0.1, adam_epsilon=1e-5
    )
    ours = TrainedModel(network(), RATE, config)
    theirs = network()
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=RATE, weight_decay=0.1, eps=1e-5, fused=True)
    for step in range(6):
        rate = 1.0 - step / 10
        ours.set_rate(rate)
        optimizer.param_groups[0]["lr"] = rate * RATE
        for model in (ours.model, theirs):
            backward(model, step)
        if missing and step % 2:
            ours.parameters[-1].grad = list(theirs.parameters())[-1].grad = None
        ours.step()
        optimizer.step()
        assert same(ours.model, theirs)
        if step == 2:
            restored = TrainedModel(network(), RATE, config)
            restored.load_state_dict(copy.deepcopy(ours.state_dict()))
            ours = restored
    for mine, its in zip(ours.parameters, theirs.parameters(), strict=True):
        for name, value in optimizer.state[its].items():
            assert torch.equal(ours.optimizer.state[mine][name], value), name


@pytest.mark.parametrize("limit", [0.01, 1e3, None])
def test_clipped_gradients_are_those_of_torch(limit: float | None) -> None:
    ours, theirs = network(), network()
    for model in (ours, theirs):
        backward(model, seed=1)
    norm = nn.utils.clip_grad_norm_(theirs.parameters(), math.inf if limit is None else limit)
    assert clip_gradients(list(ours.parameters()), limit) == float(norm)
    for mine, its in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert mine.grad is not None and its.grad is not None and torch.equal(mine.grad, its.grad)


def test_gradients_that_are_not_finite_are_refused_and_left_as_they_are() -> None:
    model = network()
    backward(model, seed=1)
    first = next(model.parameters())
    assert first.grad is not None
    first.grad[0, 0] = math.nan
    others = [each.grad.clone() for each in list(model.parameters())[1:] if each.grad is not None]
    with pytest.raises(FloatingPointError, match="the gradient norm is nan"):
        clip_gradients(list(model.parameters()), 1.0)
    assert all(
        torch.equal(a, b.grad) for a, b in zip(others, list(model.parameters())[1:], strict=True) if b.grad is not None
    )
