"""Copies of published weights into a model."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from embodyflow.policies.weight_copies import copy_weights

Weights = dict[str, np.ndarray]


class Tied(nn.Module):
    """Two layers with one weight, a frozen parameter, and a buffer of a single number."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.frozen = nn.Parameter(torch.zeros(2, dtype=torch.float64), requires_grad=False)
        self.register_buffer("count", torch.tensor(0))


@pytest.fixture
def model() -> Tied:
    return Tied()


@pytest.fixture
def weights() -> Weights:
    torch.manual_seed(1)
    return {name: np.array(value.numpy() + 1) for name, value in Tied().state_dict().items()}


@pytest.mark.parametrize("writeable", [True, False])
def test_weights_are_copied_into_the_tensors_that_are_there(model: Tied, weights: Weights, writeable: bool) -> None:
    before = {name: value.data_ptr() for name, value in model.state_dict().items()}
    for array in weights.values():
        array.flags.writeable = writeable
    with warnings.catch_warnings(action="error"):
        copy_weights(model, weights)
    state = model.state_dict()
    assert {name: value.data_ptr() for name, value in state.items()} == before
    assert all(np.array_equal(state[name].numpy(), array) for name, array in weights.items())
    assert model.second.weight is model.first.weight and model.first.weight.requires_grad


def test_a_model_keeps_its_dtype(model: Tied, weights: Weights) -> None:
    copy_weights(model.bfloat16(), weights)
    assert torch.equal(model.first.weight, torch.from_numpy(weights["first.weight"]).bfloat16())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": None, "frozen": None}, "weights are missing: count, frozen"),
        (dict.fromkeys("abcde", np.ones(1)), "the model has no weights named a, b, c and 2 more"),
        ({"frozen": np.ones(3)}, "weights have other shapes than the model's: frozen"),
    ],
)
def test_other_weights_than_the_models_change_nothing(
    model: Tied, weights: Weights, change: dict[str, np.ndarray | None], message: str
) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    given = {name: array for name, array in (weights | change).items() if array is not None}
    with pytest.raises(ValueError, match=f"^{message}$"):
        copy_weights(model, given)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_weights_that_versions_share_are_views_of_them(model: Tied, weights: Weights) -> None:
    shared = {"frozen": weights.pop("frozen")}
    for count in (1, 2):
        weights["count"] = np.array(count)
        copy_weights(model, weights | shared, shared)
        assert model.frozen.data_ptr() == shared["frozen"].ctypes.data and not model.frozen.requires_grad
        assert model.count == count and model.first.weight.data_ptr() != weights["first.weight"].ctypes.data


def test_weights_that_were_shared_are_not_written_to(model: Tied, weights: Weights) -> None:
    """A warm start may train what is frozen later, and a run may go back to the version before."""
    shared, before = {"frozen": weights["frozen"]}, weights["frozen"].copy()
    own = {name: array for name, array in weights.items() if name != "frozen"}
    copy_weights(model, own | shared, shared)
    copy_weights(model, weights | {"frozen": before + 1})
    assert np.array_equal(shared["frozen"], before) and np.array_equal(model.frozen.numpy(), before + 1)
    copy_weights(model, own | shared, shared)
    assert np.array_equal(model.frozen.numpy(), before)


def test_a_model_of_another_dtype_gets_copies_of_shared_weights(model: Tied, weights: Weights) -> None:
    shared = {"frozen": weights.pop("frozen")}
    copy_weights(model.bfloat16(), weights | shared, shared)
    assert torch.equal(model.frozen, torch.from_numpy(shared["frozen"]).bfloat16())
