"""The reference of a policy: its own trained weights and buffers, frozen weights shared with the policy."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import save

from embodyflow.training import policy_weights
from embodyflow.training.policy_weights import AllWeights


class Model(nn.Module):
    """A frozen layer, two trained layers with one weight, and a running statistic."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.first, self.second = (nn.Linear(3, 3, bias=False) for _ in range(3))
        self.second.weight = self.first.weight
        self.frozen.requires_grad_(False)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(self.frozen(values)))) + self.mean


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model()


def weights_of(model: Model) -> AllWeights:
    weights = AllWeights(cast(Any, SimpleNamespace(model=model)))
    weights.set_reference()
    return weights


def change(model: Model) -> None:
    with torch.no_grad():
        model.first.weight += 1
        model.mean += 1


def outputs(model: Model, weights: AllWeights) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the outputs of policy and reference."""
    with torch.no_grad():
        mine = model(torch.ones(3))
        with weights.reference() as policy:
            return mine, policy.model(torch.ones(3))


def test_frozen_weights_are_told_apart_and_a_tied_weight_is_trained_under_both_names(model: Model) -> None:
    weights = weights_of(model).in_parts()
    assert weights.frozen == {"frozen.weight"} and {*weights.outlines} - weights.frozen == {
        *("first.weight", "second.weight", "mean")
    }
    frozen = weights_of(model).in_parts(frozen_only=True)
    [part] = frozen.parts
    assert [*frozen.outlines] == ["frozen.weight"] and part.values.tolist() == model.frozen.weight.flatten().tolist()


def test_the_reference_stays_while_the_policy_changes_and_has_no_copy_of_frozen_weights(model: Model) -> None:
    weights = weights_of(model)
    assert weights.reference_state().keys() == {"first.weight", "mean"}
    begin, _ = outputs(model, weights)
    change(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    now, reference = outputs(model, weights)
    assert torch.equal(reference, begin) and not torch.equal(now, begin)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    weights.set_reference()
    assert torch.equal(*outputs(model, weights))


def test_the_policy_is_back_after_an_error(model: Model) -> None:
    weights = weights_of(model)
    change(model)
    before = model(torch.ones(3))
    with pytest.raises(RuntimeError), weights.reference():
        raise RuntimeError
    assert torch.equal(model(torch.ones(3)), before)


@pytest.mark.parametrize("interrupted", range(1, 9))
def test_the_policy_is_back_after_an_interruption_at_any_copy(
    model: Model, monkeypatch: pytest.MonkeyPatch, interrupted: int
) -> None:
    """Four values are looked up to begin, and four to end."""
    weights, lookups = weights_of(model), Counter[str]()
    change(model)
    before = model(torch.ones(3))

    def local_once(tensor: torch.Tensor) -> torch.Tensor:
        lookups["all"] += 1
        if lookups["all"] == interrupted:
            raise KeyboardInterrupt
        return tensor

    monkeypatch.setattr(policy_weights, "local", local_once)
    with pytest.raises(KeyboardInterrupt), weights.reference():
        pass
    assert lookups["all"] > interrupted
    assert torch.equal(model(torch.ones(3)), before)


def test_a_checkpoint_restores_the_reference_and_the_frozen_weights(model: Model, tmp_path: Path) -> None:
    expected = model(torch.ones(3))
    save({"policy": {"model": model.state_dict()}}, checkpoint_id=tmp_path)
    torch.manual_seed(1)
    other = Model()
    weights = weights_of(other)
    trained = other.first.weight.clone()
    weights.load_reference(str(tmp_path))
    assert torch.equal(outputs(other, weights)[1], expected)
    assert torch.equal(other.frozen.weight, model.frozen.weight) and torch.equal(other.first.weight, trained)
