"""Action tokens, whatever model their logits come from: how they are drawn, how likely they were, what to imitate."""

import torch
from tensordict import TensorDict
from torch import Tensor


def sample_tokens(logits: Tensor, uniforms: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Draw tokens by inverting the cumulative distribution at given uniforms.

    The randomness is the caller's, one number a token: a row draws the same tokens whatever batch it is in.

    Args:
        logits: float32 [N, L, bins].
        uniforms: float32 [N, L] in [0, 1).
        temperature: positive; the logits are divided by it.

    Returns:
        tokens int64 [N, L] and their log-probabilities float32 [N, L], at that temperature.
    """
    log_probs = torch.log_softmax(logits / temperature, dim=-1)
    cumulative = log_probs.double().exp().cumsum(-1)
    # The sum may end at 1 - 1e-16: scaled to its own end, no uniform falls beyond the last bin.
    threshold = uniforms.double().unsqueeze(-1) * cumulative[..., -1:]
    tokens = torch.searchsorted(cumulative, threshold, right=True).clamp(max=logits.shape[-1] - 1)
    return tokens.squeeze(-1), log_probs.gather(-1, tokens).squeeze(-1)


def greedy_tokens(logits: Tensor) -> Tensor:
    """Return the likeliest tokens, int64 [N, L], given logits float32 [N, L, bins]."""
    return logits.argmax(-1)


def choose_tokens(logits: Tensor, uniforms: Tensor | None, temperature: float) -> tuple[Tensor, Tensor]:
    """Return tokens and their log-probabilities, as :func:`sample_tokens`; without uniforms the likeliest."""
    if uniforms is not None:
        return sample_tokens(logits, uniforms, temperature)
    tokens = greedy_tokens(logits)
    return tokens, token_log_probs(logits, tokens, temperature)


def token_log_probs(logits: Tensor, tokens: Tensor, temperature: float) -> Tensor:
    """Return the log-probabilities, float32 [N, L], of tokens int64 [N, L] at the temperature."""
    log_probs = torch.log_softmax(logits / temperature, dim=-1)
    return log_probs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def token_entropy(logits: Tensor, temperature: float) -> Tensor:
    """Return the entropy of every token's distribution in nats, float32 [N, L], at the temperature."""
    log_probs = torch.log_softmax(logits / temperature, dim=-1)
    return -(log_probs.exp() * log_probs).sum(-1)


def evaluate_tokens(logits: Tensor, batch: TensorDict, decided: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return log-probs and entropy of a batch's tokens, float32 ``[N, T, L]``; zero outside its mask.

    Args:
        logits: float32 ``[D, L, bins]`` of the D decisions that were taken; of one blank decision where none was.
        batch: N embodied rows (:mod:`embodyflow.types`).
        decided: bool ``[N, T]``, true for those D (:func:`~embodyflow.policies.decisions.decisions`).
        temperature: that the tokens were drawn at.
    """
    mask = batch["loss_mask"].to(logits.device)
    if not decided.any():
        nothing = logits.sum() * 0.0 + logits.new_zeros(mask.shape)
        return nothing, nothing
    tokens, keep = batch["action_tokens"].to(logits.device)[decided], mask[decided]
    log_probs = token_log_probs(logits, tokens, temperature) * keep
    entropy = token_entropy(logits, temperature) * keep
    blank, where = logits.new_zeros(mask.shape), (decided,)
    return blank.index_put(where, log_probs), blank.index_put(where, entropy)


def smoothed_targets(positions: Tensor, num_bins: int, sigma: float) -> Tensor:
    """Return supervised targets: a Gaussian around each action, over the bins.

    Neighbouring bins are neighbouring actions, which one-hot targets do not tell (histogram losses, Imani & White,
    2018, arXiv:1806.04613). The width is also what RL has left to explore with.

    Args:
        positions: float32 [N, L], where the actions lie in units of bins: bin b has its centre at b.
        num_bins: of a token.
        sigma: standard deviation in bins; 0 is all weight on the nearest bin.

    Returns:
        float32 [N, L, bins], each row of bins summing to 1.
    """
    if sigma == 0:
        nearest = positions.round().long().clamp(0, num_bins - 1)
        return torch.nn.functional.one_hot(nearest, num_bins).to(positions.dtype)
    distance = torch.arange(num_bins, device=positions.device) - positions.unsqueeze(-1)
    return torch.softmax(-0.5 * (distance / sigma) ** 2, dim=-1)


def imitation_cross_entropy(logits: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
    """Return the cross-entropy to the targets, summed over the tokens of actions inside the mask.

    Args:
        logits: float32 [N, L, bins].
        targets: of that shape, each row of bins summing to 1.
        mask: bool [N, C]; L is C times the dimensions of an action.
    """
    losses = -(targets * torch.log_softmax(logits, dim=-1)).sum(-1)
    return (losses * mask.repeat_interleave(losses.shape[1] // mask.shape[1], dim=1)).sum()
