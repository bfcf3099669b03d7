"""What a reward is given, what it says, and who asks for it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from embodyflow.errors import RewardError


@dataclass(frozen=True)
class Sample:
    """One response to one prompt.

    Attributes:
        uid: of the row, named in errors.
        prompt: as text.
        response: as text, without special tokens.
        ground_truth: whatever the dataset's row says.
        data_source: name of the dataset.
        num_tokens: of the response.
        finished: whether it ended by itself, rather than at the limit.
    """

    uid: int
    prompt: str
    response: str
    ground_truth: Any
    data_source: str
    num_tokens: int
    finished: bool


@dataclass(frozen=True)
class Score:
    """What a response is worth.

    Attributes:
        reward: any finite number.
        correct: whether it counts as a success.
        parts: pieces of the reward and what else was noticed, by name; they become metrics.
    """

    reward: float
    correct: bool
    parts: Mapping[str, float] = field(default_factory=dict)


RewardFunction: TypeAlias = Callable[[Sample], Score]
BatchRewardFunction: TypeAlias = Callable[[Sequence[Sample]], Sequence[Score]]


class RewardManager(Protocol):
    """Scores samples, however that is spread over processes."""

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """Return a score for each sample, in their order.

        Raises:
            RewardError: a reward function failed; the message names the sample's uid.
        """

    def close(self) -> None:
        """End every process that was started; a second call does nothing."""


def outcome(correct: bool, **parts: float) -> Score:
    """Return the score of a verifier: 1 for a correct answer, else 0."""
    return Score(float(correct), correct, {name: float(part) for name, part in parts.items()})


def checked(score: Any, uid: int) -> Score:
    """Return what a reward function returned, if it is a score of finite numbers.

    Raises:
        RewardError: it is not.
    """
    if not isinstance(score, Score):
        raise RewardError(uid, f"the reward function returned {_shown(score)}; allowed is a Score")
    if not isinstance(score.correct, bool):
        raise RewardError(uid, f"the reward function returned correct={_shown(score.correct)}; allowed is a bool")
    for name, value in (("reward", score.reward), *score.parts.items()):
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            raise RewardError(uid, f"the reward function returned {name}={_shown(value)}; allowed are finite numbers")
    return score


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
