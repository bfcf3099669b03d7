"""Manager that adds DAPO's penalty for overlong responses."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from embodyflow.algorithms.credit.shaping import overlong_penalty
from embodyflow.rewards.interface import RewardManager, Sample, Score
from embodyflow.rewards.reward_config import DapoConfig


class DapoRewardManager:
    """Adds a penalty for overlong responses to another manager's rewards (Yu et al. 2025, arXiv:2503.14476).

    The length is the number of tokens that the model wrote, of an agent in all its turns; tokens of tools do not count.
    The penalty does not change whether a response is correct; the part ``overlong`` reports it.
    """

    def __init__(self, manager: RewardManager, config: DapoConfig) -> None:
        self._manager, self._config = manager, config

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """Return a score for each sample."""
        num_tokens = torch.tensor([sample.num_tokens for sample in samples], dtype=torch.int64)
        penalties = overlong_penalty(num_tokens, self._config.max_tokens, self._config.overlong).tolist()
        return [
            replace(score, reward=score.reward + penalty, parts={**score.parts, "overlong": penalty})
            for score, penalty in zip(self._manager.score(samples), penalties, strict=True)
        ]

    def close(self) -> None:
        """Close the other manager."""
        self._manager.close()
