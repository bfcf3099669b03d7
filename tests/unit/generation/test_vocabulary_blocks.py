"""Draws from large vocabularies by block have the distribution of the logits, and its log-probs."""

import numpy as np
import pytest
import torch
from scipy import stats

from embodyflow.generation.interface import Sampling
from embodyflow.generation.noise import build_noise
from embodyflow.generation.sampler import Sampler
from embodyflow.generation.vocabulary_blocks import LARGE, draw_by_block, numbers_per_token

VOCAB_SIZE = LARGE + 100  # its last block is shorter


def noise_of(number: int, vocab_size: int, seed: int = 0) -> torch.Tensor:
    """Return the noise of one token of a number of completions."""
    noise = build_noise(number, vocab_size, torch.device("cpu"))
    for slot in range(number):
        noise.start(slot, seed * number + slot)
    return noise.next(np.arange(number))


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> int:
    """Blocks of 8 tokens for vocabularies from 40 on; return the size of one whose last block has 2."""
    monkeypatch.setattr("embodyflow.generation.vocabulary_blocks.BLOCK_SIZE", 8)
    for module in ("vocabulary_blocks", "sampler"):
        monkeypatch.setattr(f"embodyflow.generation.{module}.LARGE", 40)
    return 50


def test_tokens_have_the_frequencies_of_the_logits(small_blocks: int) -> None:
    number, logits = 20_000, torch.linspace(0, 4, small_blocks).roll(7)
    noise = noise_of(number, small_blocks)
    assert noise.shape == (number, 7 + 8)
    tokens, log_probs = Sampler(Sampling(max_tokens=1)).draw(logits.expand(number, -1), noise)
    probs = logits.double().softmax(0).numpy()
    assert stats.chisquare(np.bincount(tokens, minlength=small_blocks), probs * number).pvalue > 1e-3
    assert log_probs == pytest.approx(np.log(probs[tokens]), abs=1e-6)


def test_tokens_that_a_filter_removes_are_never_drawn(small_blocks: int) -> None:
    number = 2000
    logits = torch.randn(number, small_blocks, generator=torch.Generator().manual_seed(0))
    sampler = Sampler(Sampling(max_tokens=1, top_k=3, temperature=2.0))
    tokens, log_probs = sampler.draw(logits, noise_of(number, small_blocks))
    kept = logits.topk(3)
    ranks = (kept.indices == torch.from_numpy(tokens)[:, None]).int().argmax(-1, keepdim=True)
    assert torch.equal(kept.indices.gather(-1, ranks)[:, 0], torch.from_numpy(tokens))
    expected = (kept.values / 2).log_softmax(-1).gather(-1, ranks)[:, 0]
    assert log_probs == pytest.approx(expected.numpy(), abs=1e-6)
    assert np.bincount(ranks[:, 0].numpy()).min() > 100


def test_log_probs_of_a_large_vocabulary_are_those_of_a_softmax() -> None:
    logits = 30 * torch.randn(8, VOCAB_SIZE, generator=torch.Generator().manual_seed(1))
    expected = logits.double().log_softmax(-1)
    for noise in (None, noise_of(8, VOCAB_SIZE)):
        tokens, log_probs = draw_by_block(logits, noise)
        assert torch.allclose(log_probs, expected.gather(-1, tokens[:, None])[:, 0], atol=1e-5, rtol=1e-6)
        assert noise is not None or torch.equal(tokens, logits.argmax(-1))


def test_a_row_does_not_depend_on_those_beside_it() -> None:
    logits = torch.randn(6, VOCAB_SIZE, generator=torch.Generator().manual_seed(2))
    noise = noise_of(6, VOCAB_SIZE)
    together = draw_by_block(logits, noise)
    alone = [draw_by_block(logits[row : row + 1], noise[row : row + 1]) for row in range(6)]
    for part in (0, 1):
        assert torch.equal(together[part], torch.cat([each[part] for each in alone]))


def test_the_last_token_can_be_drawn_and_none_beyond_it() -> None:
    logits = torch.full((64, VOCAB_SIZE), -100.0)
    logits[:, -1] = 0.0
    tokens, log_probs = draw_by_block(logits, noise_of(64, VOCAB_SIZE))
    assert tokens.tolist() == [VOCAB_SIZE - 1] * 64
    assert log_probs == pytest.approx(np.zeros(64), abs=1e-6)


@pytest.mark.parametrize(("vocab_size", "numbers"), [(50, 50), (LARGE - 1, LARGE - 1), (262_144, 512 + 512)])
def test_a_large_vocabulary_takes_few_random_numbers(vocab_size: int, numbers: int) -> None:
    assert numbers_per_token(vocab_size) == numbers
