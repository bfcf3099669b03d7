"""Scaling of rewards by the running variance of the discounted returns that a policy has trained on."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from embodyflow.policies.running_statistics.running_moments import RunningMoments
from embodyflow.policies.running_statistics.running_normalizer import EPSILON


class ReturnScale(RunningMoments):
    """Maps rewards to ``clip(reward / sqrt(variance + EPSILON), -limit, limit)``, as SB3's ``VecNormalize`` does.

    The variance is that of running returns. The running return of step t is ``R_t = gamma * R_{t-1} + r_t``, and R is
    0 before an episode. The mean is not subtracted, since that would change what the policy is rewarded for.

    Args:
        limit: Bound of a scaled reward.
    """

    def __init__(self, limit: float) -> None:
        super().__init__(1, "rewards: a discounted return")
        self._limit = limit

    def scaled(
        self, rewards: Tensor, returns: Tensor, decided: Tensor, all_reduce: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Return rewards scaled by the statistics that :func:`count_returns` will leave; nothing changes.

        The scale covers the batch itself, so the first iteration's rewards are scaled too.

        Args:
            rewards: Rewards of the batch, ``[N, T, L]``.
            returns: Running return at each decision, ``[N, T]``.
            decided: Decisions that were taken, bool ``[N, T]``.
            all_reduce: Function that returns the elementwise sum over the ranks.

        Raises:
            FloatingPointError: A running return is NaN or inf.
        """
        _, _, variance = self.merged(returns[decided].unsqueeze(-1), all_reduce)
        scaled = rewards.double() / torch.sqrt(variance + EPSILON).to(rewards.device)
        return scaled.clamp(-self._limit, self._limit).to(rewards.dtype)


def count_returns(model: nn.Module, returns: Tensor, decided: Tensor, all_reduce: Callable[[Tensor], Tensor]) -> None:
    """Merge the running returns of a batch's decisions into the :class:`ReturnScale` of a model.

    Args:
        model: Model after its optimizer steps, with a scale.
        returns: Running return at each decision, ``[N, T]``.
        decided: Decisions that were taken, bool ``[N, T]``.
        all_reduce: Function that returns the elementwise sum over the ranks.
    """
    scale = return_scale_of(model)
    assert scale is not None, "the model has no scale"
    scale.merge(returns[decided].unsqueeze(-1), all_reduce)


def return_scale_of(model: nn.Module) -> ReturnScale | None:
    """Return the scale among a model's modules; ``None`` if its rewards are not scaled."""
    return next((module for module in model.modules() if isinstance(module, ReturnScale)), None)
