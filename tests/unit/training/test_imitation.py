"""Samples for behaviour cloning and the fit itself."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from embodyflow.data.metrics import merge_metrics
from embodyflow.training.imitation.imitation import Imitation, Steps


def test_a_sample_is_a_step_with_the_actions_that_follow() -> None:
    actions = torch.arange(8.0).view(2, 4, 1)
    demos = TensorDict(
        {
            "state": 10 * actions,
            "actions": actions,
            "num_steps": torch.tensor([4, 2]),
            "instruction_ids": torch.tensor([[1], [2]]),
        },
        batch_size=[2],
    )
    samples = Steps.of_demonstrations(demos, ["state"], horizon=3)
    assert samples.observation["state"].flatten().tolist() == [0, 10, 20, 30, 40, 50]
    assert samples.observation["instruction_ids"].flatten().tolist() == [1, 1, 1, 1, 2, 2]
    followed = [chunk[mask].flatten().tolist() for chunk, mask in zip(samples.actions, samples.mask, strict=True)]
    assert followed == [[0, 1, 2], [1, 2, 3], [2, 3], [3], [4, 5], [5]]
    assert samples.actions[[3, 5]].flatten().tolist() == [3, 3, 3, 5, 5, 5], "the last action is repeated"


class Drawing:
    """Samples that record the random draws of each sample's loss."""

    num_draws = 3

    def __init__(self, model: torch.nn.Module) -> None:
        self.model, self.seen = model, []

    def __len__(self) -> int:
        return 50

    def num_targets(self, chosen: np.ndarray) -> int:
        return len(chosen)

    def loss(self, chosen: np.ndarray, uniforms: np.ndarray) -> torch.Tensor:
        self.seen.append(list(zip(chosen.tolist(), uniforms.tolist(), strict=True)))
        return self.model.weight.sum()


def test_a_sample_has_the_same_draws_on_every_rank() -> None:
    config = SimpleNamespace(learning_rate=0.1, batch_size=5)

    def draws(rank: int, world_size: int, seed: int = 7) -> list[list[tuple[int, list[float]]]]:
        samples = Drawing(torch.nn.Linear(1, 1))
        Imitation(samples.model, samples, config, seed=seed, part=rank, num_parts=world_size).advance(4)
        return samples.seen

    whole = draws(0, 1)
    for alone, first, second in zip(whole, draws(0, 2), draws(1, 2), strict=True):
        assert alone[::2] == first and alone[1::2] == second
    values = np.array([uniforms for step in whole for _, uniforms in step])
    assert values.shape == (20, 3) and len(np.unique(values)) == 60 and (values >= 0).all() and (values < 1).all()
    assert draws(0, 1, seed=8) != whole


def test_steps_in_several_stretches_are_those_of_one_fit() -> None:
    config = SimpleNamespace(learning_rate=0.1, batch_size=5)
    whole, cut = (Drawing(torch.nn.Linear(1, 1)) for _ in range(2))
    cut.model.load_state_dict(whole.model.state_dict())
    metrics = Imitation(whole.model, whole, config, seed=7, part=0, num_parts=1).advance(60)
    fit = Imitation(cut.model, cut, config, seed=7, part=0, num_parts=1)
    parts = [fit.advance(num_steps) for num_steps in (7, 1, 52)]
    assert cut.seen == whole.seen and torch.equal(cut.model.weight, whole.model.weight)
    assert parts[-1] == metrics and [part["sft/steps"].value for part in parts] == [7, 8, 60]


class Shifted:
    """Samples whose loss is their number of tokens times a common parameter."""

    num_draws = 0

    def __init__(self, level: torch.nn.Parameter) -> None:
        self._level = level

    def __len__(self) -> int:
        return 9

    def num_targets(self, chosen: np.ndarray) -> int:
        return int((1 + chosen).sum())

    def loss(self, chosen: np.ndarray, uniforms: np.ndarray) -> torch.Tensor:
        return self._level * self.num_targets(chosen)


@pytest.mark.parametrize("num_parts", [1, 2, 3])
def test_the_loss_is_the_mean_over_tokens_for_any_number_of_ranks(tiny_config, num_parts: int) -> None:
    config = tiny_config("warm_start.batch_size=7").warm_start
    parts = []
    for part in range(num_parts):
        model = torch.nn.ParameterList([torch.full((), 1.5)])
        fit = Imitation(model, Shifted(model[0]), config, seed=0, part=part, num_parts=num_parts)
        parts.append(fit.advance(1))
    assert merge_metrics(parts)["sft/loss"].value == pytest.approx(1.5)


def test_a_fit_that_diverges_keeps_the_weights_before_the_step(tiny_config) -> None:
    model = torch.nn.ParameterList([torch.full((), torch.inf)])
    fit = Imitation(model, Infinite(model[0]), tiny_config().warm_start, seed=0, part=0, num_parts=1)
    with pytest.raises(FloatingPointError, match="the gradient norm is inf: skipped the optimizer step"):
        fit.advance(1)
    assert model[0] == torch.inf


class Infinite(Shifted):
    def loss(self, chosen: np.ndarray, uniforms: np.ndarray) -> torch.Tensor:
        return self._level - self._level.square()
