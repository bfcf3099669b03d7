"""Advantages, losses, KL, filters: pure functions of tensors.

An iteration's use of them::

    advantages, returns = compute_advantages(AdvantageInputs(rewards, mask, group_ids), config)
    for each mini-batch:
        counts = count_tokens(mask, all_reduce)
        weights = token_weights(mask, config.aggregation, counts)
        selected = select_tokens(old_log_probs, advantages, mask, row_seeds, config, all_reduce)
        for each micro-batch, with its slices of all of these:
            loss, metrics = policy_objective(LossInputs(...), weights, config)
            loss.backward()
"""

from embodyflow.algorithms.advantages import AdvantageInputs, compute_advantages
from embodyflow.algorithms.aggregation import GlobalCounts, count_tokens, token_weights
from embodyflow.algorithms.configuration import AlgorithmConfig
from embodyflow.algorithms.covariance import select_tokens
from embodyflow.algorithms.filters import group_metrics, keep_mixed, keep_untruncated, keep_within
from embodyflow.algorithms.kl import estimate_kl, subtract_kl, update_kl_coef
from embodyflow.algorithms.losses import LossInputs
from embodyflow.algorithms.masked import AllReduce, Metrics
from embodyflow.algorithms.objective import policy_objective, value_objective
from embodyflow.algorithms.registry import register_advantage, register_loss
from embodyflow.algorithms.shaping import overlong_penalty, place_on_last_token

__all__ = [
    "AdvantageInputs",
    "AlgorithmConfig",
    "AllReduce",
    "GlobalCounts",
    "LossInputs",
    "Metrics",
    "compute_advantages",
    "count_tokens",
    "estimate_kl",
    "group_metrics",
    "keep_mixed",
    "keep_untruncated",
    "keep_within",
    "overlong_penalty",
    "place_on_last_token",
    "policy_objective",
    "register_advantage",
    "register_loss",
    "select_tokens",
    "subtract_kl",
    "token_weights",
    "update_kl_coef",
    "value_objective",
]
