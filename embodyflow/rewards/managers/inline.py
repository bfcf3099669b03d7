"""Managers that run the reward function in the calling process.

A function gets samples whose row, messages and ground truth are copies. The originals belong to the prompt, which
siblings, later iterations and the next generation read.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace

from embodyflow.errors import RewardError
from embodyflow.rewards.interface import BatchRewardFunction, RewardFunction, Sample, Score, check_score


class NaiveRewardManager:
    """Scores samples one by one."""

    def __init__(self, function: RewardFunction) -> None:
        self._function = function

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """Return a score for each sample."""
        return [self._score_one(sample) for sample in samples]

    def _score_one(self, sample: Sample) -> Score:
        try:
            score = self._function(_own_copy(sample))
        except (Exception, SystemExit) as error:
            raise RewardError(sample.uid, f"the reward function raised {type(error).__name__}: {error}") from error
        return check_score(score, sample.uid)

    def close(self) -> None:
        """Do nothing; this manager starts no processes."""


class BatchRewardManager:
    """Scores all samples in one call."""

    def __init__(self, function: BatchRewardFunction) -> None:
        self._function = function

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """Return a score for each sample; an error of the whole batch names the first sample."""
        if not samples:
            return []
        first = samples[0].uid
        try:
            scores = list(self._function([_own_copy(sample) for sample in samples]))
        except (Exception, SystemExit) as error:
            reason = f"the reward function raised {type(error).__name__} on {len(samples)} samples: {error}"
            raise RewardError(first, reason) from error
        if len(scores) != len(samples):
            raise RewardError(first, f"the reward function returned {len(scores)} scores for {len(samples)} samples")
        return [check_score(score, sample.uid) for score, sample in zip(scores, samples, strict=True)]

    def close(self) -> None:
        """Do nothing; this manager starts no processes."""


def _own_copy(sample: Sample) -> Sample:
    """Return a sample that shares nothing with others that a function could change."""
    row, messages, ground_truth = deepcopy((sample.row, sample.messages, sample.ground_truth))
    return replace(sample, row=row, messages=messages, ground_truth=ground_truth)
