"""Root-mean-square normalisation against that of transformers."""

import pytest
import torch
from torch import nn
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3RMSNorm

from embodyflow.policies.language.layers import rms_norm


@pytest.mark.parametrize("shape", [(5, 7, 16), (3, 16)])
def test_outputs_and_gradients_match_transformers(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    theirs, mine = (nn.Sequential(Qwen3RMSNorm(16)) for _ in range(2))
    for norm in (theirs, mine):
        torch.nn.init.uniform_(norm[0].weight, generator=torch.Generator().manual_seed(1))
    rms_norm.use_in(mine)
    assert isinstance(mine[0], Qwen3RMSNorm) and mine.state_dict().keys() == theirs.state_dict().keys()
    scales = torch.tensor([1e-3, 1.0, 1e3])[torch.arange(shape[0]) % 3].view(-1, *[1] * (len(shape) - 1))
    inputs, gradient = (torch.randn(shape) * scales).requires_grad_(), torch.randn(shape)
    results = [(norm(inputs), norm[0].weight) for norm in (mine, theirs)]
    for (outputs, weight), (expected, their_weight) in [results]:
        torch.testing.assert_close(outputs, expected)
        ours = torch.autograd.grad(outputs, (inputs, weight), gradient)
        for one, other in zip(ours, torch.autograd.grad(expected, (inputs, their_weight), gradient), strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    with torch.no_grad():
        assert torch.equal(mine(inputs), results[0][0])


def test_the_gradient_matches_finite_differences() -> None:
    torch.manual_seed(0)
    inputs, weight = torch.randn(3, 5, dtype=torch.float64), torch.rand(5, dtype=torch.float64)
    arguments = (inputs.requires_grad_(), weight.requires_grad_(), 1e-6)
    assert torch.autograd.gradcheck(rms_norm._Normalise.apply, arguments)


def test_every_normalisation_is_replaced_and_other_precisions_are_unchanged() -> None:
    config = Qwen3Config(hidden_size=16, num_attention_heads=2, num_key_value_heads=1, head_dim=8)
    layer = Qwen3Attention(config, 0).to(torch.bfloat16)
    inputs = torch.randn(4, 8, dtype=torch.bfloat16)
    plain = layer.q_norm(inputs)
    rms_norm.use_in(layer)
    assert [name for name, each in layer.named_modules() if isinstance(each, rms_norm._RMSNorm)] == ["q_norm", "k_norm"]
    assert torch.equal(layer.q_norm(inputs), plain)
