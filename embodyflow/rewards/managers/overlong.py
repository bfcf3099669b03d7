"""Rewards with a price on length."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from embodyflow.algorithms.shaping import overlong_penalty
from embodyflow.rewards.reward_config import DapoConfig
from embodyflow.rewards.reward_interface import RewardManager, Sample, Score


class DapoRewardManager:
    """Adds DAPO's punishment of overlong responses to another manager's rewards (Yu et al. 2025, arXiv:2503.14476).

    What is correct stays correct; the part ``overlong`` is what was added.
    """

    def __init__(self, scores: RewardManager, config: DapoConfig) -> None:
        self._scores, self._config = scores, config

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """Return a score for each sample."""
        num_tokens = torch.tensor([sample.num_tokens for sample in samples], dtype=torch.int64)
        penalties = overlong_penalty(num_tokens, self._config.max_tokens, self._config.overlong).tolist()
        return [
            replace(score, reward=score.reward + penalty, parts={**score.parts, "overlong": penalty})
            for score, penalty in zip(self._scores.score(samples), penalties, strict=True)
        ]

    def close(self) -> None:
        """Close the other manager."""
        self._scores.close()
