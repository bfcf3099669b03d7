"""Running baselines of agents: what each agent usually earns, as a moving average over episodes.

In a game that is not fair the seats differ in what they earn however well they play. Role-conditioned advantage
estimation (RAE) subtracts from an agent's outcome the average of that agent's earlier outcomes: A = R − b, then
b ← decay·b + (1 − decay)·R. An episode's outcome is not part of its own baseline, which leaves the gradient unbiased.
Baselines begin at 0. Liu et al. 2025, "SPIRAL", arXiv:2506.24119.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Outcomes:
    """What each of A agents earned in N episodes.

    Attributes:
        scores: Sum of the rewards on the agent's tokens, float64 [N, A]; 0 for an agent that wrote nothing.
        wrote: Whether the agent wrote in the episode, bool [N, A].
    """

    scores: Tensor
    wrote: Tensor

    @staticmethod
    def of(rewards: Tensor, mask: Tensor, agents: Tensor, num_agents: int) -> "Outcomes":
        """Sum the rewards of each agent.

        Args:
            rewards: Reward of each token, float [N, L]; those outside the mask are not read.
            mask: Tokens of the policy, bool [N, L].
            agents: Agent that wrote each token, integers [N, L] from 1; those outside the mask are not read.
            num_agents: A.

        Raises:
            ValueError: A token inside the mask has no agent.
        """
        if (agents[mask] < 1).any():
            raise ValueError("agents: a token inside the mask has no agent; each conversation needs its agent's name")
        number = agents.long() * mask
        scores = torch.zeros(len(mask), num_agents + 1, dtype=torch.float64)
        scores.scatter_add_(1, number, rewards.double().masked_fill(~mask, 0.0))
        wrote = torch.zeros(len(mask), num_agents + 1, dtype=torch.bool).scatter_(1, number, mask)
        return Outcomes(scores[:, 1:], wrote[:, 1:])


def follow(baselines: Tensor, outcomes: Outcomes, decay: float) -> tuple[Tensor, Tensor]:
    """Follow the outcomes of episodes in their order.

    Args:
        baselines: Baseline of each agent before the first episode, float64 [A].
        outcomes: Outcomes of N episodes.
        decay: Weight of the earlier average.

    Returns:
        Baselines before each episode, float64 [N, A], and after the last one, float64 [A].
    """
    before = []
    for scores, wrote in zip(outcomes.scores, outcomes.wrote, strict=True):
        before.append(baselines)
        baselines = torch.where(wrote, decay * baselines + (1 - decay) * scores, baselines)
    return torch.stack(before) if before else outcomes.scores, baselines
