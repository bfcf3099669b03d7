"""Drawing of tokens: what no model should give is not a token."""

import pytest
import torch

from embodyflow.generation.interface import GenerationError, Sampling
from embodyflow.generation.sampler import Sampler
from embodyflow.generation.vocabulary_blocks import LARGE, numbers_per_token


@pytest.mark.parametrize("size", [7, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.0}, {"top_k": 2, "top_p": 0.5}], ids=str)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_logits_without_a_distribution_give_no_tokens(value: float, settings: dict, size: int) -> None:
    """The largest of numbers with NaN among them is NaN, so its place would be the token."""
    logits, sampling = torch.zeros(3, size), Sampling(max_tokens=1, **settings)
    noise = None if sampling.is_greedy else torch.zeros(3, numbers_per_token(size), dtype=torch.float64)
    Sampler(sampling).draw(logits, noise)
    logits[1, 5] = value
    with pytest.raises(GenerationError, match=r"^the logits of 1 of 3 rows are NaN or inf$"):
        Sampler(sampling).draw(logits, noise)


def test_tokens_that_a_filter_leaves_out_have_no_probability() -> None:
    tokens, log_probs = Sampler(Sampling(max_tokens=1, top_k=1)).draw(
        torch.tensor([[0.0, 3.0, 1.0]]), torch.zeros(1, 3, dtype=torch.float64)
    )
    assert tokens.tolist() == [1] and log_probs.tolist() == [0.0]
