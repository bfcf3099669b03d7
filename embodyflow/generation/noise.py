"""Random numbers that tokens are drawn from, with a separate stream for each completion.

A stream has K numbers per token, with K the size of the vocabulary unless that is large
(:mod:`embodyflow.generation.vocabulary_blocks`). They are logarithms of exponential variates: the sampler draws a token
from them by the Gumbel-max trick (Maddison et al. 2014), since Gumbel = −log Exponential. They have double precision,
because the smallest of K numbers decides about the least probable tokens.

On a CPU, NumPy's generator is the fastest source. On another device the numbers are computed there: K numbers per
completion and token would take longer to draw and copy than the model takes to compute its logits.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from embodyflow.generation.vocabulary_blocks import numbers_per_token
from embodyflow.seeding import derive_rng

BLOCK = 256
"""Least random numbers to draw at once. A smaller block takes more calls; the rest of a larger one is often wasted,
since turns of agents may have less than ten tokens."""

GAMMA = 0x9E3779B97F4A7C15
"""Step of the counter of SplitMix64, 2⁶⁴ divided by the golden ratio."""


class Noise(Protocol):
    """The random numbers of the completions in all slots."""

    def start(self, slot: int, seed: int, drawn: int = 0) -> None:
        """Start the random stream of a completion with this seed in a slot, after the numbers of ``drawn`` tokens."""

    def next(self, slots: npt.NDArray[np.int64]) -> Tensor:
        """Return random numbers, float64 [n, K], for the next token of n slots."""

    def move(self, source: int, target: int) -> None:
        """Move the random stream of one slot to another."""


def build_noise(num_slots: int, vocab_size: int, device: torch.device) -> Noise:
    """Return the noise for logits on a device.

    Args:
        num_slots: Number of slots.
        vocab_size: Size of the vocabulary.
        device: Device of the logits and of the random numbers.
    """
    numbers = numbers_per_token(vocab_size)
    return HostNoise(num_slots, numbers) if device.type == "cpu" else CounterNoise(num_slots, numbers, device)


class HostNoise:
    """Numbers that NumPy's generators draw in blocks of several tokens.

    Args:
        num_slots: Number of slots.
        per_token: Numbers for a token, K.
    """

    def __init__(self, num_slots: int, per_token: int) -> None:
        self._per_block, self._per_token = -(-BLOCK // per_token), per_token
        # The numbers of one token are used at once. Where there are many, they take much memory and time to copy.
        num_kept = self._per_block if self._per_block > 1 else 0
        self._blocks = np.empty((num_slots, num_kept, per_token))
        self._used = np.zeros(num_slots, np.int64)
        self._rngs: list[np.random.Generator | None] = [None] * num_slots

    def start(self, slot: int, seed: int, drawn: int = 0) -> None:
        """Start a stream; the numbers of the tokens before are drawn again."""
        rng = derive_rng(seed, "generation")
        self._rngs[slot], self._used[slot] = rng, self._per_block
        for _ in range(drawn // self._per_block):  # an exponential takes a varying number of bits: no way to jump
            rng.standard_exponential((self._per_block, self._per_token))
        if rest := drawn % self._per_block:
            self._blocks[slot], self._used[slot] = self._draw([slot]), rest

    def next(self, slots: npt.NDArray[np.int64]) -> Tensor:
        """Return numbers on the CPU."""
        if self._per_block == 1:
            return torch.from_numpy(self._draw(slots.tolist())[:, 0])
        if len(empty := slots[self._used[slots] == self._per_block]):
            self._blocks[empty], self._used[empty] = self._draw(empty.tolist()), 0
        numbers = self._blocks[slots, self._used[slots]]
        self._used[slots] += 1
        return torch.from_numpy(numbers)

    def move(self, source: int, target: int) -> None:
        """Move a stream with the rest of its block."""
        self._rngs[target], self._used[target] = self._rngs[source], self._used[source]
        self._blocks[target] = self._blocks[source]

    def _draw(self, slots: Sequence[int]) -> npt.NDArray[np.float64]:
        """Draw the next block of each slot, [n, tokens, K]."""
        blocks = np.empty((len(slots), self._per_block, self._per_token))
        for slot, block in zip(slots, blocks, strict=True):
            rng = self._rngs[slot]
            assert rng is not None
            rng.standard_exponential(out=block)
        return np.log(np.maximum(blocks, 1e-300, out=blocks), out=blocks)


class CounterNoise:
    """Numbers that are computed on a device from a key per token, by SplitMix64 (Steele et al. 2014, OOPSLA).

    Each token of a stream has a key of 64 bits, and its numbers are the K outputs of the generator that starts at the
    key. All operations are elementwise, so the numbers depend on nothing but the key.

    Args:
        num_slots: Number of slots.
        per_token: Numbers for a token, K.
        device: Device of the random numbers.
    """

    def __init__(self, num_slots: int, per_token: int, device: torch.device) -> None:
        self._seeds, self._used = np.zeros(num_slots, np.uint64), np.zeros(num_slots, np.uint64)
        self._device = device
        self._steps = torch.arange(1, per_token + 1, device=device) * _signed(GAMMA)

    def start(self, slot: int, seed: int, drawn: int = 0) -> None:
        """Start a stream."""
        self._seeds[slot] = derive_rng(seed, "generation").integers(2**64, dtype=np.uint64)
        self._used[slot] = drawn

    def next(self, slots: npt.NDArray[np.int64]) -> Tensor:
        """Return numbers on the device."""
        keys = splitmix64(torch.from_numpy((self._seeds[slots] ^ _spread(self._used[slots])).view(np.int64)))
        self._used[slots] += np.uint64(1)
        bits = splitmix64(keys.to(self._device)[:, None] + self._steps)
        uniform = _shifted(bits, 12).double().add_(0.5).mul_(2.0**-52)  # in (0, 1); with more bits 1 would occur
        return uniform.log_().neg_().log_()

    def move(self, source: int, target: int) -> None:
        """Move a stream."""
        self._seeds[target], self._used[target] = self._seeds[source], self._used[source]


def splitmix64(values: Tensor) -> Tensor:
    """Return the output function of SplitMix64 for each value, int64 of any shape, whose bits count as unsigned."""
    mixed = (values ^ _shifted(values, 30)) * _signed(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ _shifted(mixed, 27)) * _signed(0x94D049BB133111EB)
    return mixed ^ _shifted(mixed, 31)


def _spread(counts: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return counts times :data:`GAMMA`, modulo 2⁶⁴."""
    return counts * np.uint64(GAMMA)


def _shifted(values: Tensor, places: int) -> Tensor:
    """Return values shifted to the right with zeros in front; PyTorch's shift repeats the sign."""
    return (values >> places) & (2 ** (64 - places) - 1)


def _signed(bits: int) -> int:
    """Return the int64 with these 64 bits."""
    return bits - 2**64 if bits >= 2**63 else bits
