"""Random numbers of completions: both sources have the right distribution, and streams depend on their seeds alone."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats

from embodyflow.generation.interface import Sampling
from embodyflow.generation.noise import GAMMA, CounterNoise, HostNoise, Noise, splitmix64
from embodyflow.generation.sampler import Sampler

VOCAB_SIZE = 50
Source = Callable[[int], Noise]


@pytest.fixture(params=["host", "host of one token", "counter"])
def source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Source:
    """A function that builds the noise of a number of slots."""
    if request.param == "host of one token":  # as with a large vocabulary
        monkeypatch.setattr("embodyflow.generation.noise.BLOCK", VOCAB_SIZE)
    if request.param != "counter":
        return lambda num_slots: HostNoise(num_slots, VOCAB_SIZE)
    return lambda num_slots: CounterNoise(num_slots, VOCAB_SIZE, torch.device("cpu"))


def draws(noise: Noise, slot: int, number: int) -> torch.Tensor:
    """Return the numbers of the next tokens of a slot, [number, V]."""
    return torch.cat([noise.next(np.array([slot])) for _ in range(number)])


def test_splitmix64_gives_the_published_numbers() -> None:
    counter = torch.arange(1, 4) * (GAMMA - 2**64)
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]  # of the seed 0
    assert [value % 2**64 for value in splitmix64(counter).tolist()] == expected


def test_numbers_are_logarithms_of_independent_exponentials(source: Source) -> None:
    noise = source(2)
    noise.start(0, 1)
    noise.start(1, 2)
    first, second = (draws(noise, slot, 2000).exp() for slot in (0, 1))
    for numbers in (first, second):
        assert numbers.dtype == torch.float64 and numbers.shape == (2000, VOCAB_SIZE)
        assert stats.kstest(numbers.flatten().numpy(), stats.expon.cdf).pvalue > 1e-3
    neighbors = [(first, second), (first[1:], first[:-1]), (first[:, 1:], first[:, :-1])]
    for one, other in neighbors:
        assert abs(np.corrcoef(one.flatten().numpy(), other.flatten().numpy())[0, 1]) < 0.02


@pytest.mark.parametrize("drawn", [0, 1, 20, 21, 45])
def test_a_stream_goes_on_after_tokens_that_were_drawn_before(source: Source, drawn: int) -> None:
    noise = source(2)
    noise.start(0, 7)
    numbers = draws(noise, 0, drawn + 5)
    noise.start(1, 7, drawn)
    assert torch.equal(draws(noise, 1, 5), numbers[drawn:])


def test_a_stream_depends_on_neither_its_slot_nor_its_neighbors(source: Source) -> None:
    alone, beside = source(1), source(3)
    alone.start(0, 7)
    for slot, seed in enumerate((3, 5, 7)):
        beside.start(slot, seed)
    expected = draws(alone, 0, 30)
    together = torch.cat([beside.next(np.array([0, 2]))[1:] for _ in range(15)])
    beside.move(2, 1)
    assert torch.equal(torch.cat([together, draws(beside, 1, 15)]), expected)


def test_tokens_have_the_frequencies_of_the_logits(source: Source) -> None:
    noise, number = source(1), 5000
    noise.start(0, 11)
    logits = torch.linspace(0, 4, VOCAB_SIZE).roll(7)
    tokens, log_probs = Sampler(Sampling(max_tokens=1)).draw(logits.expand(number, -1), draws(noise, 0, number))
    probs = logits.double().softmax(0).numpy()
    counts = np.bincount(tokens, minlength=VOCAB_SIZE)
    assert stats.chisquare(counts, probs * number).pvalue > 1e-3
    assert log_probs == pytest.approx(np.log(probs[tokens]), abs=1e-5)
