"""Action tokens of any model: sampling, log-probs, entropy and imitation targets, all from logits."""

from collections.abc import Sequence

import torch
from tensordict import TensorDict
from torch import Tensor


def sample_tokens(logits: Tensor, uniforms: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Sample tokens by inverting the cumulative distribution at given uniforms.

    The caller brings the randomness, one number per token, so a row gets the same tokens in any batch.

    Args:
        logits: Logits, float32 [N, L, bins].
        uniforms: Random numbers in [0, 1), float32 [N, L].
        temperature: Positive divisor of the logits.

    Returns:
        Tokens, int64 [N, L], and their log-probs at that temperature, float32 [N, L].
    """
    log_probs = torch.log_softmax(logits / temperature, dim=-1)
    cumulative = log_probs.double().exp().cumsum(-1)
    # The sum may end at 1 - 1e-16. Scaling the uniforms to that end keeps them within the last bin.
    threshold = uniforms.double().unsqueeze(-1) * cumulative[..., -1:]
    tokens = torch.searchsorted(cumulative, threshold, right=True).clamp(max=logits.shape[-1] - 1)
    return tokens.squeeze(-1), log_probs.gather(-1, tokens).squeeze(-1)


def greedy_tokens(logits: Tensor) -> Tensor:
    """Return the most probable tokens, int64 [N, L], given logits float32 [N, L, bins]."""
    return logits.argmax(-1)


def choose_tokens(logits: Tensor, uniforms: Tensor | None, temperature: float) -> tuple[Tensor, Tensor]:
    """Return tokens and their log-probs as :func:`sample_tokens` does; without uniforms, the most probable tokens."""
    if uniforms is not None:
        return sample_tokens(logits, uniforms, temperature)
    tokens = greedy_tokens(logits)
    return tokens, token_log_probs(logits, tokens, temperature)


def token_log_probs(logits: Tensor, tokens: Tensor, temperature: float) -> Tensor:
    """Return the log-probs, float32 [N, L], of tokens int64 [N, L] at the temperature."""
    log_probs = torch.log_softmax(logits / temperature, dim=-1)
    return log_probs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def token_entropy(logits: Tensor, temperature: float) -> Tensor:
    """Return the entropy of each token's distribution at the temperature, in nats, float32 [N, L]."""
    log_probs = torch.log_softmax(logits / temperature, dim=-1)
    return -(log_probs.exp() * log_probs).sum(-1)


def evaluate_tokens(logits: Tensor, batch: TensorDict, decided: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return log-probs and entropy of a batch's tokens, float32 ``[N, T, L]``; zero outside its mask.

    Args:
        logits: Logits of the D decisions that were taken, float32 ``[D, L, bins]``; of one blank decision if D = 0.
        batch: N embodied rows (:mod:`embodyflow.types`).
        decided: Mask of those D decisions, bool ``[N, T]``; see :func:`~embodyflow.policies.decisions.decisions`.
        temperature: Temperature that the tokens were sampled at.
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
    """Return supervised targets: for each action a Gaussian over the bins, centred on it.

    Neighbouring bins are neighbouring actions, which one-hot targets ignore (histogram losses, Imani & White, 2018,
    arXiv:1806.04613). The width also leaves RL something to explore with.

    Args:
        positions: Actions in units of bins, float32 [N, L]; bin b has its centre at b.
        num_bins: Values of a token.
        sigma: Standard deviation in bins; 0 puts all weight on the nearest bin.

    Returns:
        Probabilities, float32 [N, L, bins]; each row of bins sums to 1.
    """
    if sigma == 0:
        nearest = positions.round().long().clamp(0, num_bins - 1)
        return torch.nn.functional.one_hot(nearest, num_bins).to(positions.dtype)
    distance = torch.arange(num_bins, device=positions.device) - positions.unsqueeze(-1)
    return torch.softmax(-0.5 * (distance / sigma) ** 2, dim=-1)


def member_mask(members: Tensor, action_dims: Sequence[int]) -> Tensor:
    """Return True for the dimensions of an action that its member has, bool [N, A]; the others are padding.

    Args:
        members: Index of each row's member, int64 [N, 1].
        action_dims: Dimensions of an action by member; A is the largest.
    """
    dims = torch.tensor(action_dims, device=members.device)[members]
    return torch.arange(max(action_dims), device=members.device) < dims


def imitation_cross_entropy(logits: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
    """Return the cross-entropy to the targets, summed over the tokens of actions inside the mask.

    Args:
        logits: Logits, float32 [N, L, bins].
        targets: Probabilities of that shape; each row of bins sums to 1.
        mask: Actions that count, bool [N, C], where L is C times the dimensions of an action; or tokens that count,
            bool [N, L].
    """
    losses = -(targets * torch.log_softmax(logits, dim=-1)).sum(-1)
    return (losses * mask.repeat_interleave(losses.shape[1] // mask.shape[1], dim=1)).sum()
