"""Batch renormalisation by hand: warm-up, correction, limits, members and running statistics."""

import math

import pytest
import torch

from embodyflow.policies.control.mlp_renorm.batch_renorm import EPSILON, BatchRenorm, batch_statistics

COLUMN = torch.tensor([[1.0], [3.0], [5.0]])  # mean 3, variance 4


def renorm(warmup_steps: int, mean: float = 0.0, variance: float = 1.0) -> BatchRenorm:
    module = BatchRenorm(1, momentum=0.25, warmup_steps=warmup_steps)
    module.mean.fill_(mean)
    module.variance.fill_(variance)
    return module


def test_a_step_of_the_warm_up_is_batch_normalisation_and_moves_the_running_statistics() -> None:
    module = renorm(warmup_steps=1)
    expected = 2 / math.sqrt(4 + EPSILON)
    torch.testing.assert_close(module(COLUMN), torch.tensor([[-expected], [0.0], [expected]]))
    assert (module.mean.item(), module.variance.item(), module.steps.item()) == (0.75, 1.75, 1)


def test_after_the_warm_up_the_result_is_that_of_the_running_statistics_within_the_limits() -> None:
    """r = 2 / 1 and d = (3 - 2) / 1, so (x - 3) / 2 · 2 + 1 = x - 2, up to ε."""
    module = renorm(warmup_steps=0, mean=2.0)
    torch.testing.assert_close(module(COLUMN), COLUMN - 2, atol=5e-3, rtol=0)
    running = math.sqrt(1 + EPSILON)
    ratio, shift = math.sqrt(4 + EPSILON) / running, 1 / running
    mean, variance = 3 - shift * 2 / ratio, 4 / ratio**2
    module = renorm(warmup_steps=0, mean=2.0)
    torch.testing.assert_close(module(COLUMN), (COLUMN - mean) / math.sqrt(variance + EPSILON))


def test_ratio_and_shift_are_limited_and_pass_no_gradient() -> None:
    """r would be 20 and d 30, so (x - 3) / 2 · 3 + 5; as r and d are constants, the sum of all does not move."""
    module = renorm(warmup_steps=0, variance=0.01 - EPSILON)
    inputs = COLUMN.clone().requires_grad_(True)
    outputs = module(inputs)
    torch.testing.assert_close(outputs, torch.tensor([[2.0], [5.0], [8.0]]), atol=0.02, rtol=0)
    outputs.sum().backward()
    assert inputs.grad is not None and inputs.grad.abs().max() < 0.01  # 3 / 2 if the statistics were constants


def test_evaluation_normalises_rows_alone_and_leaves_the_statistics() -> None:
    module = renorm(warmup_steps=0, mean=2.0, variance=4 - EPSILON).eval()
    torch.testing.assert_close(module(COLUMN), torch.tensor([[-0.5], [0.5], [1.5]]))
    torch.testing.assert_close(module(COLUMN[1:2]), torch.tensor([[0.5]]))
    assert (module.mean.item(), module.steps.item()) == (2.0, 0)


def test_members_have_statistics_of_their_own() -> None:
    both = BatchRenorm(1, num_members=2, momentum=0.25, warmup_steps=0)
    inputs = torch.stack([COLUMN, 10 * COLUMN])
    for _ in range(2):
        outputs = both(inputs)
    for member in range(2):
        one = BatchRenorm(1, momentum=0.25, warmup_steps=0)
        for _ in range(2):
            expected = one(inputs[member])
        torch.testing.assert_close(outputs[member], expected)
        assert both.mean[member].item() == pytest.approx(one.mean.item())


def test_a_feature_without_variance_has_finite_gradients() -> None:
    """A ReLU that no row of the batch passes is such a feature."""
    module = renorm(warmup_steps=0, mean=1.0)
    inputs = torch.zeros(4, 1, requires_grad=True)
    module(inputs).square().sum().backward()
    assert inputs.grad is not None and inputs.grad.isfinite().all()


def test_a_block_of_batch_statistics_ends_in_evaluation_mode_whatever_happens() -> None:
    module = renorm(warmup_steps=0).eval()
    with pytest.raises(ZeroDivisionError), batch_statistics(module):
        assert module.training
        raise ZeroDivisionError
    assert not module.training
