"""Conversion of action tokens to the environment's actions and back (Kim et al., 2024, arXiv:2406.09246, section 3.2).

A data set's actions are scaled to [-1, 1] by their 1% and 99% quantiles where its mask is true. 256 edges cut them into
255 intervals, whose centres are the decoded actions. The token of bin b is the word ``vocabulary - 1 - b``, so the last
256 words mean actions; bin 255 means the last interval too.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from embodyflow.policies.embodied.openvla.configuration_openvla import Gripper


class ActionScale:
    """Scales the environment's actions to [-1, 1] and back, by the statistics of one data set.

    Args:
        statistics: Quantiles ``q01`` and ``q99``, and possibly ``mask``, each ``[A]``.
        gripper: Treatment of the last dimension. ``binary_inverted`` is LIBERO's: in the data 0 closes and 1 opens, in
            the environment 1 closes, -1 opens, and nothing lies between.
    """

    def __init__(self, statistics: Mapping[str, Any], gripper: Gripper) -> None:
        self._low = torch.tensor(statistics["q01"], dtype=torch.float64)
        self._high = torch.tensor(statistics["q99"], dtype=torch.float64)
        self._scaled = torch.tensor(statistics.get("mask", [True] * len(self._low)))
        self._inverts_gripper = gripper == "binary_inverted"

    def actions_of(self, scaled: Tensor) -> Tensor:
        """Return the environment's actions, float32 [N, C, A] on the CPU, of scaled ones."""
        numbers = scaled.cpu().double()
        actions = torch.where(self._scaled, self._low + 0.5 * (numbers + 1.0) * (self._high - self._low), numbers)
        if self._inverts_gripper:
            actions[..., -1] = -torch.sign(2.0 * actions[..., -1] - 1.0)
        return actions.float()

    def scaled(self, actions: Tensor) -> Tensor:
        """Return actions float32 [N, C, A] scaled, within [-1, 1], float64 [N, C, A] on the CPU."""
        data = actions.double().cpu().clone()
        if self._inverts_gripper:
            data[..., -1] = (1.0 - data[..., -1]) / 2.0
        extent = torch.where(self._high > self._low, self._high - self._low, 1.0)
        return torch.where(self._scaled, 2.0 * (data - self._low) / extent - 1.0, data).clamp(-1.0, 1.0)


class ActionCodec(ActionScale):
    """Decodes and encodes the actions of one data set.

    Args:
        statistics: See :class:`ActionScale`.
        num_bins: Values of a token, that is edges of intervals.
        gripper: See there.
    """

    def __init__(self, statistics: Mapping[str, Any], num_bins: int, gripper: Gripper) -> None:
        super().__init__(statistics, gripper)
        self._num_intervals = num_bins - 1

    def actions(self, tokens: Tensor) -> Tensor:
        """Return the environment's actions of bins int64 [N, C·A], float32 [N, C, A] on the CPU."""
        bins = tokens.cpu().unflatten(-1, (-1, len(self._low))).clamp(max=self._num_intervals - 1)
        return self.actions_of((2.0 * bins.double() + 1.0) / self._num_intervals - 1.0)

    def positions(self, actions: Tensor) -> Tensor:
        """Return actions float32 [N, C, A] in units of bins, float32 [N, C·A]; bin b has its centre at b."""
        positions = (self.scaled(actions) + 1.0) * self._num_intervals / 2.0 - 0.5
        return positions.clamp(0.0, self._num_intervals - 1.0).flatten(1).float().to(actions.device)
