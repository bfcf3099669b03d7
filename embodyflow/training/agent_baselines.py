"""The running baselines of a run's agents, which the trainer keeps and saves with the models."""

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from embodyflow.algorithms.credit.running_baselines import Outcomes, follow
from embodyflow.algorithms.masked import AllReduce
from embodyflow.config import RunConfig


class AgentBaselines:
    """Follows the outcomes of episodes in the order of their uids, so that nothing depends on ranks and workers.

    Args:
        config: Run configuration.

    Attributes:
        values: Baseline of each agent after the episodes that the policy has trained on, float64 [A].
    """

    def __init__(self, config: RunConfig) -> None:
        self._names, self._decay = config.agents, config.algorithm.baseline_decay
        self.values = torch.zeros(len(self._names), dtype=torch.float64)

    def of_tokens(self, rows: TensorDict, positions: np.ndarray, total_rows: int, all_reduce: AllReduce) -> Tensor:
        """Return the baseline that each token's agent has before the row's episode; nothing changes.

        Args:
            rows: N rows of this rank with R tokens each, with ``rewards`` and ``token_agent``.
            positions: Positions of these rows in the whole batch, int64 [N].
            total_rows: Number of rows in the whole batch.
            all_reduce: Function that returns the elementwise sum over the ranks.

        Returns:
            Baselines, float32 [N, R, 1]; 0 outside ``loss_mask``.
        """
        before, _ = self._follow(rows, positions, total_rows, all_reduce)
        own = torch.nn.functional.pad(before[torch.from_numpy(positions)], (1, 0))
        agents = rows["token_agent"].flatten(1).long() * rows["loss_mask"].flatten(1)
        return own.gather(1, agents).float().view(rows["loss_mask"].shape)

    def advance(self, rows: TensorDict, positions: np.ndarray, total_rows: int, all_reduce: AllReduce) -> None:
        """Take the outcomes of rows into the baselines; arguments are those of :meth:`of_tokens`."""
        _, self.values = self._follow(rows, positions, total_rows, all_reduce)

    def by_name(self) -> dict[str, float]:
        """Return the baseline of each agent by name."""
        return dict(zip(self._names, self.values.tolist(), strict=True))

    def _follow(
        self, rows: TensorDict, positions: np.ndarray, total_rows: int, all_reduce: AllReduce
    ) -> tuple[Tensor, Tensor]:
        """Return the baselines before each row of the whole batch, by position, and after all of them."""
        mask, place = rows["loss_mask"].flatten(1), torch.from_numpy(positions)
        own = Outcomes.of(rows["rewards"].flatten(1), mask, rows["token_agent"].flatten(1), len(self._names))
        uids = all_reduce(torch.zeros(total_rows, dtype=torch.int64).index_copy_(0, place, rows["uid"]))
        scores, wrote = (
            all_reduce(torch.zeros(total_rows, len(self._names), dtype=torch.float64).index_copy_(0, place, each))
            for each in (own.scores, own.wrote.double())
        )
        order = uids.argsort()
        before, after = follow(self.values, Outcomes(scores[order], wrote[order] > 0), self._decay)
        return torch.zeros_like(before).index_copy_(0, order, before), after
