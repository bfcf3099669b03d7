"""Drawing a token of a large vocabulary in two steps: a block of tokens, then one of its tokens.

The largest of several scores with Gumbel noise has Gumbel noise itself, around their logsumexp (Maddison et al. 2014,
arXiv:1411.0030). So a block that is drawn by its logsumexp, and a token that is drawn among those of the block, have
the distribution of a token that is drawn among all. With a quarter of a million tokens this takes a thousand random
numbers in place of one for each; those would take longer than the layers of a small model.
"""

import torch
from torch import Tensor

LARGE = 16_384
"""Least size of a vocabulary that has blocks; below it, one step with a number for each token is faster."""

BLOCK_SIZE = 512


def numbers_per_token(vocab_size: int) -> int:
    """Return how many random numbers a draw takes: one for each token, or for each block and each token of a block."""
    return _num_blocks(vocab_size) + BLOCK_SIZE if vocab_size >= LARGE else vocab_size


def draw_by_block(scores: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
    """Draw a token for each row.

    Args:
        scores: Unnormalised log-probs of a large vocabulary, float32 [n, V].
        noise: Logarithms of exponential variates, float64 [n, ``numbers_per_token(V)``]; ``None`` takes the likeliest
            tokens.

    Returns:
        The tokens, int64 [n], and their log-probs, float64 [n].
    """
    largest = scores.amax(-1, keepdim=True)
    masses = _masses(scores, largest).double()
    tokens = scores.argmax(-1) if noise is None else _two_steps(scores, masses, noise)
    relative = (scores.gather(-1, tokens[:, None]) - largest)[:, 0].double()
    return tokens, relative - masses.sum(-1).log()


def _two_steps(scores: Tensor, masses: Tensor, noise: Tensor) -> Tensor:
    """Return a token of each row, int64 [n], given the sums of the blocks' probabilities up to a factor."""
    vocab_size, num_blocks = scores.shape[-1], masses.shape[-1]
    blocks = (masses.log() - noise[:, :num_blocks]).argmax(-1)
    tokens = blocks[:, None] * BLOCK_SIZE + torch.arange(BLOCK_SIZE, device=scores.device)
    within = scores.gather(-1, tokens.clamp(max=vocab_size - 1)) - noise[:, num_blocks:]
    within[tokens >= vocab_size] = -torch.inf  # the last block may be shorter
    return tokens.gather(-1, within.argmax(-1, keepdim=True))[:, 0]


def _masses(scores: Tensor, largest: Tensor) -> Tensor:
    """Return the sums of ``exp(scores - largest)`` by block, [n, blocks]."""
    (num_rows, vocab_size), num_blocks = scores.shape, _num_blocks(scores.shape[-1])
    at_once = 1 if scores.device.type == "cpu" else num_rows  # a row fits in the cache of a core
    masses = scores.new_empty(num_rows, num_blocks)
    exponentials = scores.new_zeros(at_once, num_blocks * BLOCK_SIZE)  # places beyond the last token have no mass
    for first in range(0, num_rows, at_once):
        rows = slice(first, first + at_once)
        torch.sub(scores[rows], largest[rows], out=exponentials[:, :vocab_size]).exp_()
        torch.sum(exponentials.view(at_once, num_blocks, BLOCK_SIZE), -1, out=masses[rows])
    return masses


def _num_blocks(vocab_size: int) -> int:
    return -(-vocab_size // BLOCK_SIZE)
