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

from embodyflow.generation.interface import Sampling


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
            noise: Random numbers, float64 [n, V] on the same device, from :class:`~embodyflow.generation.noise.Noise`;
                ``None`` for greedy decoding.

        Returns:
            The tokens and their log-probs, [n] each.
        """
        no_tokens = torch.empty(0, dtype=torch.long, device=logits.device)  # these processors read no tokens
        scores = self._processors(no_tokens, logits.float())
        # Rounding of the logits changes a draw only if two tokens are almost tied.
        noisy = scores if noise is None else scores - noise
        tokens = noisy.argmax(-1, keepdim=True)
        log_probs = scores.gather(-1, tokens) - scores.logsumexp(-1, keepdim=True)
        return tokens[:, 0].cpu().numpy(), log_probs[:, 0].cpu().numpy()
