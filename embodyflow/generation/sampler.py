"""Drawing tokens from logits."""

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

from embodyflow.generation.interface import GenerationError, Sampling
from embodyflow.generation.vocabulary_blocks import LARGE, draw_by_block


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
        self, logits: torch.Tensor, noise: torch.Tensor | None
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Draw a token for each row.

        Args:
            logits: Logits [n, V]; they are not changed.
            noise: Random numbers on the same device, from :class:`~embodyflow.generation.noise.Noise`; ``None`` for
                greedy decoding. They are overwritten.

        Returns:
            The tokens and their log-probs, [n] each.

        Raises:
            GenerationError: A token has no finite log-prob, because the model's logits are NaN or inf.
        """
        if self._processors:  # a filter would leave out what is NaN and draw from the rest
            _check_finite(logits.amax(-1).float().cpu().numpy())
        no_tokens = torch.empty(0, dtype=torch.long, device=logits.device)  # these processors read no tokens
        scores = self._processors(no_tokens, logits.float())
        # Rounding of the logits changes a draw only if two tokens, or two blocks of them, are almost tied.
        draw = draw_by_block if scores.shape[-1] >= LARGE else _draw_at_once
        tokens, log_probs = draw(scores, noise)
        drawn = log_probs.float().cpu().numpy()
        _check_finite(drawn)  # a search for the largest takes the first NaN for a token
        return tokens.cpu().numpy(), drawn


def _check_finite(numbers: npt.NDArray[np.float32]) -> None:
    """Check a number of each row, float32 [n], that is NaN or inf if its logits are."""
    if not (finite := np.isfinite(numbers)).all():
        raise GenerationError(f"the logits of {(~finite).sum()} of {len(numbers)} rows are NaN or inf")


def _draw_at_once(scores: torch.Tensor, noise: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = scores.argmax(-1) if noise is None else _argmax_of_difference(scores, noise)
    # The fused kernel takes half the time of a logsumexp, although it writes V numbers per row.
    return tokens, scores.log_softmax(-1).gather(-1, tokens[:, None])[:, 0]


def _argmax_of_difference(scores: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Return the index, int64 [n], of the largest of ``scores - noise`` in each row; the noise is overwritten."""
    if scores.device.type != "cpu":
        return torch.sub(scores, noise, out=noise).argmax(-1)
    # NumPy subtracts mixed precisions and searches in half of PyTorch's time, and in a quarter of it in large rows.
    difference = noise.numpy()
    return torch.from_numpy(np.subtract(scores.numpy(), difference, out=difference).argmax(-1))
