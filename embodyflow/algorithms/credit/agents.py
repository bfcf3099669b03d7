"""The tokens of each agent as a row of their own, so that an estimator compares an agent with itself alone.

An episode of two players has an outcome for each. Their sum, which is zero in a zero-sum game, tells neither how it
played. With ``algorithm.per_agent=true`` a row of A agents becomes A rows, and a group becomes A groups, one of each
agent. So the first player's outcome is compared with the first player's in the sibling episodes, which begin alike:
roles differ in what they can win, and a baseline over both would reward the better seat. It is the role-conditioned
baseline of Liu et al. 2025, "SPIRAL", arXiv:2506.24119, with siblings in the place of a moving average.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from embodyflow.algorithms.groups import Groups


@dataclass(frozen=True)
class AgentRows:
    """M rows, one for each agent that wrote in each of B rows of L tokens.

    Attributes:
        num_rows: B.
        row: Row that each one is a part of, int64 [M].
        agent: Agent of each one, int64 [M], from 1.
        mask: Tokens that the agent wrote, bool [M, L]; each token of the B rows is in one of the M rows.
    """

    num_rows: int
    row: Tensor
    agent: Tensor
    mask: Tensor

    @staticmethod
    def of(mask: Tensor, agents: Tensor | None) -> "AgentRows":
        """Split rows by agent.

        Args:
            mask: Tokens of the policy, bool [B, L].
            agents: Agent that wrote each token, integers [B, L] from 1; those outside the mask are not read.

        Raises:
            ValueError: The agents are missing, or a token inside the mask has none.
        """
        if agents is None:
            raise ValueError("agents: missing; per_agent=true needs them")
        if (agents[mask] < 1).any():
            raise ValueError("agents: a token inside the mask has no agent; each conversation needs its agent's name")
        number = agents.long() * mask
        highest = int(number.max()) if number.numel() else 0
        wrote = torch.zeros(len(mask), highest + 1, dtype=torch.bool, device=mask.device)
        wrote.scatter_(1, number, True)
        wrote[:, 0] = False
        row, agent = wrote.nonzero(as_tuple=True)
        return AgentRows(len(mask), row, agent, number[row] == agent[:, None])

    def groups(self, group_ids: Tensor) -> Tensor:
        """Return ids of groups, int64 [M], given those of the B rows: rows of one group and one agent share one."""
        index = Groups(group_ids).index[self.row]
        return index * (int(self.agent.max()) + 1) + self.agent if len(index) else index

    def own_turns(self, turns: Tensor) -> Tensor:
        """Return the turns of each agent counted on their own, int64 [M, L] from 1, given those of all, [B, L]."""
        number = turns[self.row].long() * self.mask
        highest = int(number.max()) if number.numel() else 0
        taken = number.new_zeros(len(number), highest + 1).scatter_(1, number, 1)
        taken[:, 0] = 0
        return taken.cumsum(1).gather(1, number) if number.numel() else number

    def join(self, tokens: Tensor) -> Tensor:
        """Return one number per token of the B rows, given one per token of the M rows; 0 outside their masks."""
        inside = tokens.masked_fill(~self.mask, 0.0)
        return tokens.new_zeros(self.num_rows, tokens.shape[1]).index_add(0, self.row, inside)
