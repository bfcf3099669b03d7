"""Log-probs and entropies computed in pieces, against torch's distribution."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical

from embodyflow.policies.language.causal_lm import chosen_causal_lm
from embodyflow.policies.language.causal_lm.chosen_causal_lm import choose, choose_by_head
from embodyflow.policies.language.layers import onednn_linear

LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "log-probs": lambda log_probs, entropy: (log_probs * torch.arange(7)).sum(),
    "entropy": lambda log_probs, entropy: entropy.square().sum(),
    "both": lambda log_probs, entropy: (log_probs.exp() - 0.1 * entropy).sum(),
}


@pytest.mark.parametrize("piece", [2**20, 22], ids=["at once", "two rows at a time"])
@pytest.mark.parametrize("loss", LOSSES)
def test_values_and_gradients_match_torchs_distribution(loss: str, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chosen_causal_lm, "PIECE", piece)
    torch.manual_seed(0)
    logits, targets = (3 * torch.randn(7, 11)).requires_grad_(), torch.randint(11, (7,))
    distribution = Categorical(logits=logits / 0.7)
    mine, expected = choose(logits, targets, 0.7), (distribution.log_prob(targets), distribution.entropy())
    for one, other in zip(mine, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    gradients = [torch.autograd.grad(LOSSES[loss](*pair), logits)[0] for pair in (mine, expected)]
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("learns", ["head and rest", "head", "rest"])
@pytest.mark.parametrize(("rows", "piece"), [(7, 2**20), (3, 22), (1, 11)])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_head_in_pieces_matches_torchs_distribution(
    loss: str, rows: int, piece: int, learns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chosen_causal_lm, "PIECE", piece)
    torch.manual_seed(0)
    hidden, weight, targets = torch.randn(7, 5), torch.randn(11, 5), torch.randint(11, (7,))
    leaves = [each.requires_grad_() for each, name in ((hidden, "rest"), (weight, "head")) if name in learns]
    distribution = Categorical(logits=hidden @ weight.t() / 0.7)
    mine = choose_by_head(hidden, weight, targets, 0.7, rows)
    expected = distribution.log_prob(targets), distribution.entropy()
    for one, other in zip(mine, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    for one, other in zip(
        *(torch.autograd.grad(LOSSES[loss](*pair), leaves) for pair in (mine, expected)), strict=True
    ):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-5)


@pytest.mark.skipif(not onednn_linear.IS_AVAILABLE, reason="this build of torch has no oneDNN")
def test_pieces_share_the_memory_of_their_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn_linear, "IS_FASTER", True)
    places, into = list[int](), chosen_causal_lm.linear_into

    def watched(*tensors: Tensor) -> Tensor:
        product = into(*tensors)
        places.append(product.data_ptr())
        return product

    monkeypatch.setattr(chosen_causal_lm, "linear_into", watched)
    hidden, weight = torch.randn(10, 8, requires_grad=True), torch.randn(1000, 8, requires_grad=True)
    log_probs, _ = choose_by_head(hidden, weight, torch.zeros(10, dtype=torch.int64), 1.0, 4)
    log_probs.sum().backward()
    assert len(places) == 6 and len(set(places[:3])) == len(set(places[3:])) == 1


def test_a_head_in_pieces_keeps_no_logits() -> None:
    hidden, weight = torch.randn(64, 8, requires_grad=True), torch.randn(1000, 8, requires_grad=True)
    kept = list[torch.Tensor]()
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        choose_by_head(hidden, weight, torch.zeros(64, dtype=torch.int64), 1.0, 16)
    assert sum(tensor.nbytes for tensor in kept) < hidden.nbytes + weight.nbytes + 64 * 32


def test_only_the_logits_are_kept_for_the_backward_pass() -> None:
    logits, kept = torch.randn(64, 1000, requires_grad=True), []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        choose(logits, torch.zeros(64, dtype=torch.int64), 1.0)
    assert sum(tensor.nbytes for tensor in kept) < 1.01 * logits.nbytes
