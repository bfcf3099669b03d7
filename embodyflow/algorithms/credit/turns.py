"""The turns of an agent as steps: their rewards, their returns, and numbers per turn spread over its tokens.

The model writes a row in K turns, which may be in several contexts. With r_k the sum of the rewards on the tokens of
turn k and γ the discount between turns, the return from turn k on is G_k = r_k + γ·G_{k+1}. G_1 is the row's score.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Turns:
    """The turns of rows of B × L tokens, at most K in a row.

    Attributes:
        number: Turn of each token, int64 [B, L], from 1; 0 outside the mask.
        counts: Number of turns of each row, int64 [B].
        rewards: Sum of rewards in each turn, float64 [B, K]; 0 after a row's last turn.
    """

    number: Tensor
    counts: Tensor
    rewards: Tensor

    @staticmethod
    def of(rewards: Tensor, mask: Tensor, turns: Tensor | None) -> "Turns":
        """Return the turns of rows.

        Args:
            rewards: Reward of each token, float [B, L]; those outside the mask are not read.
            mask: Tokens of the policy, bool [B, L].
            turns: Turn of each token, integers [B, L] from 1; those outside the mask are not read. ``None`` makes each
                row one turn.
        """
        number = (torch.ones_like(mask) if turns is None else turns).long() * mask
        counts = number.amax(1) if mask.shape[1] else number.new_zeros(len(mask))
        width = int(counts.max()) if len(counts) else 0
        sums = rewards.new_zeros((len(mask), width + 1), dtype=torch.float64)
        sums.scatter_add_(1, number, rewards.double().masked_fill(~mask, 0.0))
        return Turns(number, counts, sums[:, 1:])

    def returns(self, discount: float) -> Tensor:
        """Return the return G_k from each turn on, float64 [B, K]; after a row's last turn it stays that of the last.

        So siblings that ended earlier are compared by their last turn's return.
        """
        returns = self.rewards.clone()
        for k in reversed(range(returns.shape[1] - 1)):
            returns[:, k] += discount * returns[:, k + 1]
        last = (self.counts - 1).clamp(min=0)[:, None]
        places = torch.arange(returns.shape[1], device=returns.device).expand_as(returns)
        return returns.gather(1, torch.minimum(places, last)) if returns.shape[1] else returns

    def exist(self) -> Tensor:
        """Return a mask of the turns that each row has, bool [B, K]."""
        return torch.arange(self.rewards.shape[1], device=self.counts.device) < self.counts[:, None]

    def first(self, tokens: Tensor) -> Tensor:
        """Return the number of the first token of each turn, [B, K], given one per token, [B, L]; 0 for no turn."""
        numbers, length = self.number, self.number.shape[1]
        places = torch.arange(length, device=numbers.device).expand_as(numbers)
        start = numbers.new_full((len(numbers), self.rewards.shape[1] + 1), length)
        first = start.scatter_reduce(1, numbers, places, "amin")[:, 1:]
        found = tokens.gather(1, first.clamp(max=max(length - 1, 0))) if length else tokens.new_zeros(first.shape)
        return found.masked_fill(first == length, 0.0)

    def spread(self, numbers: Tensor) -> Tensor:
        """Return the number of each token's turn, [B, L], given one per turn, [B, K]; 0 outside the mask."""
        return torch.nn.functional.pad(numbers, (1, 0)).gather(1, self.number)

    def closed(self) -> Tensor:
        """Return a mask of the last tokens of turns that another turn follows, bool [B, L]."""
        following = torch.zeros_like(self.counts)
        columns = []
        for column in reversed(self.number.unbind(1)):
            columns.append((column > 0) & (following > column))
            following = torch.where(column > 0, column, following)
        return torch.stack(columns[::-1], 1) if columns else self.number.bool()
