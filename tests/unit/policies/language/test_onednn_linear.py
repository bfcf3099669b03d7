"""Linear layers that multiply by oneDNN have the outputs and gradients of PyTorch's."""

from pathlib import Path

import pytest
import torch
from torch import nn

from embodyflow.policies.language.layers import onednn_linear
from embodyflow.policies.language.layers.onednn_linear import MIN_PRODUCTS, OneDNNLinear

pytestmark = pytest.mark.skipif(not onednn_linear.IS_AVAILABLE, reason="this build of torch has no oneDNN")


@pytest.fixture(autouse=True)
def is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn_linear, "IS_FASTER", True)


def results_of(layer: nn.Linear, inputs: torch.Tensor) -> list[torch.Tensor]:
    """Return the outputs, and the gradients of inputs and parameters."""
    inputs = inputs.clone().requires_grad_()
    outputs = layer(inputs)
    return [outputs.detach(), *torch.autograd.grad(outputs.square().sum(), [inputs, *layer.parameters()])]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "shape", [(64, 256), (4, 30, 256), (1, 3)], ids=["rows", "sequences", "too few to be worth it"]
)
def test_outputs_and_gradients_match_a_plain_layer(
    shape: tuple[int, ...], bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    plain, layer = (nn.Sequential(nn.Linear(shape[-1], 160, bias=bias)) for _ in range(2))
    layer.load_state_dict(plain.state_dict())
    onednn_linear.use_in(layer)
    assert type(layer[0]) is OneDNNLinear and isinstance(layer[0], nn.Linear)
    inputs, calls, product = torch.randn(shape), [], onednn_linear._product
    monkeypatch.setattr(onednn_linear, "_product", lambda *tensors: calls.append(1) or product(*tensors))
    for mine, theirs in zip(results_of(layer[0], inputs), results_of(plain[0], inputs), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-5)
    assert len(calls) == (3 if inputs.numel() * 160 >= MIN_PRODUCTS else 0)
    with torch.no_grad():
        assert torch.equal(layer(inputs), layer(inputs.clone()))
        torch.testing.assert_close(layer(inputs), plain(inputs), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("is_faster", [False, True])
@pytest.mark.parametrize("size", [3, 64, 100])
def test_a_product_is_added_block_by_block(is_faster: bool, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn_linear, "IS_FASTER", is_faster)
    monkeypatch.setattr(onednn_linear, "BLOCK", 32)
    left, right, total = torch.randn(9, size), torch.randn(9, 5), torch.randn(size, 5)
    expected = total + left.t() @ right
    onednn_linear.add_product_of_columns(total, left, right)
    torch.testing.assert_close(total, expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 5, 9])
def test_a_product_in_memory_of_an_earlier_one_has_the_bits_of_a_new_one(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onednn_linear, "OUTPUTS", 48)
    inputs, weight = torch.randn(rows, 64), torch.randn(100, 64)
    earlier = onednn_linear.linear_into(None, torch.randn(9, 64), weight)
    product = onednn_linear.linear_into(earlier, inputs, weight)
    assert torch.equal(product, onednn_linear.linear_of_any_size(inputs, weight, None))
    assert product.data_ptr() == earlier.data_ptr() and product.shape == (rows, 100)


def test_another_library_gets_no_memory_of_an_earlier_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn_linear, "IS_FASTER", False)
    inputs, weight = torch.randn(5, 64), torch.randn(100, 64)
    earlier = onednn_linear.linear_into(None, inputs, weight)
    product = onednn_linear.linear_into(earlier, inputs, weight)
    assert torch.equal(product, earlier) and product.data_ptr() != earlier.data_ptr()


def test_a_frozen_layer_passes_its_gradient_on() -> None:
    layer, inputs = nn.Sequential(nn.Linear(256, 256)), torch.randn(64, 256, requires_grad=True)
    onednn_linear.use_in(layer)
    layer.requires_grad_(False)
    layer(inputs).sum().backward()
    torch.testing.assert_close(inputs.grad, layer[0].weight.sum(0).expand(64, -1), atol=1e-4, rtol=1e-5)


def test_other_precisions_use_pytorch() -> None:
    layer = nn.Sequential(nn.Linear(256, 256)).to(torch.bfloat16)
    plain = layer(inputs := torch.randn(64, 256, dtype=torch.bfloat16))
    onednn_linear.use_in(layer)
    assert torch.equal(layer(inputs), plain)


def test_mkl_multiplies_where_it_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, inputs = nn.Sequential(nn.Linear(256, 256)), torch.randn(64, 256)
    plain = layer(inputs)
    onednn_linear.use_in(layer)
    monkeypatch.setattr(onednn_linear, "IS_FASTER", False)
    monkeypatch.delattr(onednn_linear, "_product")
    assert inputs.numel() * 256 >= MIN_PRODUCTS
    assert torch.equal(layer(inputs), plain)


def cpu_info(vendor: str, family: int, flags: str) -> str:
    """Return what Linux writes of two processors."""
    facts = f"vendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: 17\nflags\t\t: fpu {flags} clflush\n"
    return "\n".join(f"processor\t: {index}\n{facts}" for index in range(2))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (cpu_info("AuthenticAMD", 26, "avx2 avx512f avx512dq"), True),
        (cpu_info("AuthenticAMD", 25, "avx2 avx512f avx512dq"), False),
        (cpu_info("AuthenticAMD", 26, "avx avx2"), False),
        (cpu_info("GenuineIntel", 26, "avx2 avx512f"), False),
        ("CPU implementer\t: 0x41\n", False),
        (None, False),
    ],
)
def test_onednn_is_chosen_on_amd_processors_from_zen_5_on(
    text: str | None, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onednn_linear, "CPU_INFO", tmp_path / "cpuinfo")
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    assert onednn_linear.is_faster() is expected
