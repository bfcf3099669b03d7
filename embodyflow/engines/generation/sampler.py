"""Drawing tokens, each row from its own random numbers."""

from collections.abc import Sequence

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

from embodyflow.engines.generation.interface import Sampling
from embodyflow.seeding import derive_rng

BLOCK = 4096  # numbers drawn at once, at least


class Noise:
    """The random numbers of one completion: V of them a token, V the size of the vocabulary."""

    def __init__(self, seed: int, vocab_size: int) -> None:
        self._rng = derive_rng(seed, "generation")
        self._shape = (-(-BLOCK // vocab_size), vocab_size)
        self._block: npt.NDArray[np.float64] = np.empty((0, vocab_size))
        self._used = 0

    def next(self) -> npt.NDArray[np.float64]:
        """Return exponentially distributed numbers [V] for the next token."""
        if self._used == len(self._block):
            self._block, self._used = self._rng.standard_exponential(self._shape), 0
        self._used += 1
        return self._block[self._used - 1]


class Sampler:
    """Draws tokens from the distribution that ``sampling`` makes of a model's logits."""

    def __init__(self, sampling: Sampling) -> None:
        self._is_greedy = sampling.is_greedy
        processors: list[LogitsProcessor] = []
        if sampling.temperature not in (0, 1):
            processors.append(TemperatureLogitsWarper(float(sampling.temperature)))
        if sampling.min_p > 0:
            processors.append(MinPLogitsWarper(sampling.min_p))
        if sampling.top_k is not None:
            processors.append(TopKLogitsWarper(sampling.top_k))
        if sampling.top_p < 1:
            processors.append(TopPLogitsWarper(sampling.top_p))
        self._processors = LogitsProcessorList([] if self._is_greedy else processors)

    def draw(self, logits: torch.Tensor, noises: Sequence[Noise]) -> tuple[list[int], list[float]]:
        """Draw a token for each row.

        Args:
            logits: [n, V], not changed.
            noises: of the n rows.

        Returns:
            The tokens and their log-probs, n each.
        """
        none = torch.empty(0, dtype=torch.long, device=logits.device)  # the processors used ask for no tokens
        scores = self._processors(none, logits.float())
        if self._is_greedy:
            tokens = scores.argmax(-1, keepdim=True)
        else:
            # The Gumbel-max trick (Maddison et al. 2014), with Gumbel = −log Exponential: a draw from the softmax that
            # rounding of the logits moves only where two tokens are in a dead heat. Double precision, as the smallest
            # of V numbers decides about the least probable tokens.
            noise = torch.from_numpy(np.stack([noise.next() for noise in noises])).to(scores.device)
            tokens = (scores - noise.clamp_(min=1e-300).log_()).argmax(-1, keepdim=True)
        log_probs = scores.gather(-1, tokens) - scores.logsumexp(-1, keepdim=True)
        return tokens[:, 0].tolist(), log_probs[:, 0].tolist()
