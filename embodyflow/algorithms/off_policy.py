"""Losses of soft actor-critic (arXiv:1812.05905), TD3 (arXiv:1802.09477) and implicit Q-learning (arXiv:2110.06169).

The constants are those of Stable-Baselines3, and of d3rlpy for implicit Q-learning, whose numbers they reproduce.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

POOLS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {"least": lambda values: values.amin(0), "mean": lambda values: values.mean(0)}
)
"""Functions from the values of K critics ``[K, B]`` to those that the policy maximises ``[B]``.

The mean is that of RLPD (Ball et al. 2023, arXiv:2302.02948, algorithm 1).
"""


def n_step_returns(rewards: Tensor, counted: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """Return the discounted sums of the counted rewards, and the discounts of what follows them, both ``[B]``.

    Args:
        rewards: Rewards of up to n successive steps, float32 ``[B, n]``.
        counted: Steps that belong to the sum, bool ``[B, n]``: the first and any number of those after it.
        gamma: Discount of one step.
    """
    powers = gamma ** torch.arange(rewards.shape[1] + 1, dtype=torch.float64)
    returns = (rewards.double() * powers[:-1] * counted).sum(1)
    return returns.to(rewards.dtype), powers[counted.sum(1)].to(rewards.dtype)


def soft_targets(
    returns: Tensor, discounts: Tensor, next_values: Tensor, next_log_probs: Tensor, temperature: Tensor
) -> Tensor:
    """Return the targets r + γ · (min Q - α · log π) of the critics, ``[B]`` (equations 3 and 5).

    Args:
        returns: Sums of the rewards of the steps, ``[B]``.
        discounts: Discounts of what follows, 0 where the episode terminated, ``[B]``.
        next_values: Values of the next state and an action of the policy by each target critic, ``[K, B]``.
        next_log_probs: Log-densities of these actions, ``[B]``.
        temperature: α, a scalar.
    """
    return returns + discounts * (next_values.amin(0) - temperature * next_log_probs)


def critic_loss(values: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return half the mean squared error of values ``[K, B]`` to targets ``[B]``, summed over critics (equation 5).

    Args:
        values: Values of K critics.
        targets: Targets of all critics.
        weights: Factors of the squares, ``[B]``; 1 by default.
    """
    return 0.5 * squared_errors(values, targets, weights)


def actor_loss(log_probs: Tensor, values: Tensor, temperature: Tensor) -> Tensor:
    """Return the mean of α · log π - Q (equation 7).

    Args:
        log_probs: Log-densities of actions of the policy, ``[B]``, with gradients to the policy.
        values: Q, values of these actions, ``[B]``, with gradients to the actions; see :data:`POOLS`.
        temperature: α, a scalar.
    """
    return (temperature * log_probs - values).mean()


def temperature_loss(log_temperature: Tensor, log_probs: Tensor, target_entropy: float) -> Tensor:
    """Return the mean of -log α · (log π + target), which raises α where the entropy is below its target (equation 18).

    The gradient is taken in log α, as in the authors' implementation.

    Args:
        log_temperature: log α, a scalar.
        log_probs: Log-densities of actions of the policy, ``[B]``, without gradients.
        target_entropy: Entropy to keep, in nats.
    """
    return -(log_temperature * (log_probs + target_entropy)).mean()


def clipped_noise(normals: Tensor, deviation: float, limit: float) -> Tensor:
    """Return noise of a deviation within ± ``limit``, by which TD3 smooths its targets (algorithm 1).

    Args:
        normals: Standard normals, any shape.
        deviation: Standard deviation before clipping.
        limit: Largest absolute value.
    """
    return (deviation * normals).clamp(-limit, limit)


def deterministic_targets(returns: Tensor, discounts: Tensor, next_values: Tensor) -> Tensor:
    """Return TD3's targets r + γ · min Q, ``[B]``; see :func:`soft_targets`."""
    return returns + discounts * next_values.amin(0)


def squared_errors(values: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the mean squared error of values ``[K, B]`` to targets ``[B]``, summed over critics (TD3).

    Args:
        values: Values of K critics.
        targets: Targets of all critics.
        weights: Factors of the squares, ``[B]``; 1 by default.
    """
    squares = (values - targets).square()
    return (squares if weights is None else squares * weights).mean(1).sum()


def expectile_loss(differences: Tensor, expectile: float) -> Tensor:
    """Return the mean of |τ - 1(u < 0)| · u², which is least where values are the τ-expectile (IQL, equation 5).

    Args:
        differences: u, values of the data set's actions minus those of their states, ``[B]``.
        expectile: τ in (0, 1); 0.5 is the mean, and 1 would be the largest value.
    """
    weights = torch.where(differences < 0, 1 - expectile, expectile)
    return (weights * differences.square()).mean()


def advantage_weights(advantages: Tensor, inverse_temperature: float, largest: float) -> Tensor:
    """Return the weights exp(β · A) of actions in the policy's log-likelihood, ``[B]``, at most ``largest`` (IQL, 7).

    Args:
        advantages: A, values of actions minus those of their states, ``[B]``.
        inverse_temperature: β; 0 imitates all actions alike.
        largest: Bound of a weight.
    """
    return (inverse_temperature * advantages).exp().clamp(max=largest)
