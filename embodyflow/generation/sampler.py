"""Drawing tokens, with a separate random stream for each row."""

import numpy as np
import numpy.typing as npt
import torch
from transformers.generation.logits_process import (
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from embodyflow.generation.interface import Sampling
from embodyflow.seeding import derive_rng

BLOCK = 1024  # minimum of random numbers to draw at once


class Noise:
    """The random numbers of the completions in all slots: V per token, with V the size of the vocabulary.

    They are logarithms of exponential variates. The sampler draws a token from them by the Gumbel-max trick (Maddison
    et al. 2014), since Gumbel = −log Exponential. They have double precision, because the smallest of V numbers decides
    about the least probable tokens.

    Args:
        num_slots: Number of slots.
        vocab_size: Size of the vocabulary, V.
    """

    def __init__(self, num_slots: int, vocab_size: int) -> None:
        self._per_block = -(-BLOCK // vocab_size)
        self._blocks = np.empty((num_slots, self._per_block, vocab_size))
        self._used = np.zeros(num_slots, np.int64)
        self._rngs: list[np.random.Generator | None] = [None] * num_slots

    def start(self, slot: int, seed: int, drawn: int = 0) -> None:
        """Start the random stream of a completion with this seed in a slot, after the numbers of ``drawn`` tokens."""
        rng = derive_rng(seed, "generation")
        self._rngs[slot], self._used[slot] = rng, self._per_block
        for _ in range(drawn // self._per_block):  # an exponential takes a varying number of bits: no way to jump
            rng.standard_exponential(out=self._blocks[slot])
        if rest := drawn % self._per_block:
            self._fill(slot)
            self._used[slot] = rest

    def next(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return random numbers [n, V] for the next token of n slots."""
        for slot in slots[self._used[slots] == self._per_block].tolist():
            self._fill(slot)
        numbers = self._blocks[slots, self._used[slots]]
        self._used[slots] += 1
        return numbers

    def move(self, source: int, target: int) -> None:
        """Move the random stream of one slot to another."""
        self._rngs[target], self._used[target] = self._rngs[source], self._used[source]
        self._blocks[target] = self._blocks[source]

    def _fill(self, slot: int) -> None:
        rng, block = self._rngs[slot], self._blocks[slot]
        assert rng is not None
        rng.standard_exponential(out=block)
        np.log(np.maximum(block, 1e-300, out=block), out=block)
        self._used[slot] = 0


class Sampler:
    """Draws tokens from a model's logits.

    Args:
        sampling: Sampling parameters.
    """

    def __init__(self, sampling: Sampling) -> None:
        processors: list[LogitsProcessor] = []
        if sampling.temperature not in (0, 1):
            processors.append(TemperatureLogitsWarper(float(sampling.temperature)))
        if sampling.min_p > 0:
            processors.append(MinPLogitsWarper(sampling.min_p))
        if sampling.top_k is not None:
            processors.append(TopKLogitsWarper(sampling.top_k))
        if sampling.top_p < 1:
            processors.append(TopPLogitsWarper(sampling.top_p))
        self._processors = LogitsProcessorList([] if sampling.is_greedy else processors)

    def draw(
        self, logits: torch.Tensor, noise: npt.NDArray[np.float64] | None
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Draw a token for each row.

        Args:
            logits: Logits [n, V]; they are not changed.
            noise: Random numbers [n, V] from :class:`Noise`, or ``None`` for greedy decoding.

        Returns:
            The tokens and their log-probs, [n] each.
        """
        no_tokens = torch.empty(0, dtype=torch.long, device=logits.device)  # these processors read no tokens
        scores = self._processors(no_tokens, logits.float())
        # Rounding of the logits changes a draw only if two tokens are almost tied.
        noisy = scores if noise is None else scores - torch.from_numpy(noise).to(scores.device)
        tokens = noisy.argmax(-1, keepdim=True)
        log_probs = scores.gather(-1, tokens) - scores.logsumexp(-1, keepdim=True)
        return tokens[:, 0].cpu().numpy(), log_probs[:, 0].cpu().numpy()
