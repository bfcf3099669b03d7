"""Interface of rewards: samples, scores, reward functions and reward managers."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from embodyflow.errors import RewardError

LARGEST_REWARD = 3.4028234663852886e38
"""Largest number of float32, in which rows hold rewards."""


@dataclass(frozen=True)
class Sample:
    """One response to one prompt; the response of an agent is its last turn.

    Attributes:
        uid: Id of the row, named in errors.
        prompt: Text of the prompt.
        response: Text of the response, without special tokens.
        ground_truth: Ground truth from the row of the dataset.
        data_source: Name of the dataset.
        num_tokens: Number of tokens that the model wrote: those of the response, or of all turns of an agent.
        finished: True if the response ended by itself, False if it was cut at the limit of tokens.
        row: Further columns of the row of the dataset.
        messages: Messages of the prompt if it is a chat, else ``None``.
        token_ids: Token ids of the response, with the one that ended it.
    """

    uid: int
    prompt: str
    response: str
    ground_truth: Any
    data_source: str
    num_tokens: int
    finished: bool
    row: Mapping[str, Any] = field(default_factory=dict)
    messages: Sequence[Mapping[str, Any]] | None = None
    token_ids: Sequence[int] = ()


@dataclass(frozen=True)
class Score:
    """Score of a response.

    Attributes:
        reward: Reward, any finite number.
        correct: True if the response counts as a success.
        parts: Components of the reward and other finite numbers to report, by name; they become metrics.
    """

    reward: float
    correct: bool
    parts: Mapping[str, float] = field(default_factory=dict)


RewardFunction: TypeAlias = Callable[[Sample], Score]
BatchRewardFunction: TypeAlias = Callable[[Sequence[Sample]], Sequence[Score]]


class RewardManager(Protocol):
    """Scores samples, in this process or in several others."""

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """Return a score for each sample, in order.

        Raises:
            RewardError: A reward function failed; the message names the uid of the sample.
        """

    def close(self) -> None:
        """End all processes that the manager started; a second call does nothing."""


def outcome(correct: bool, **parts: float) -> Score:
    """Return the score of a verifier: reward 1 for a correct answer, else 0."""
    return Score(float(correct), correct, {name: float(part) for name, part in parts.items()})


def is_reward(value: Any) -> bool:
    """Return True if a value is a number that a row can hold: finite, also in float32."""
    try:
        return isinstance(value, (int, float)) and math.isfinite(value) and abs(value) <= LARGEST_REWARD
    except OverflowError:  # an integer that is larger than any float
        return False


def check_score(score: Any, uid: int) -> Score:
    """Check that a reward function returned a score of finite numbers, and return it.

    Raises:
        RewardError: The value is not a score, or one of its numbers is NaN, inf or too large for float32.
    """
    if not isinstance(score, Score):
        raise RewardError(uid, f"the reward function returned {_abbreviate(score)}; allowed is a Score")
    if not isinstance(score.correct, bool):
        raise RewardError(uid, f"the reward function returned correct={_abbreviate(score.correct)}; allowed is a bool")
    for name, value in (("reward", score.reward), *score.parts.items()):
        if not is_reward(value):
            raise RewardError(
                uid, f"the reward function returned {name}={_abbreviate(value)}; allowed are finite numbers of float32"
            )
    return score


def _abbreviate(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
