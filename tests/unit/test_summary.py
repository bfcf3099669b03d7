"""What a finished run says of itself."""

import pytest

from embodyflow.config.summary import return_line, return_summary


@pytest.mark.parametrize(
    ("rewards", "line"),
    [
        ([-39.04, -17.7], "return first=-39.0 last=-17.7 seed=3 seconds=12"),
        ([], "return first=none last=none seed=3 seconds=12"),  # a run shorter than an episode
    ],
)
def test_returns_are_those_of_episodes_that_ended(rewards: list[float], line: str) -> None:
    records = [{"iteration": 1}, *({"rollout/reward": reward} for reward in rewards), {"iteration": 9}]
    assert return_line(return_summary(records) | {"seed": 3, "train_seconds": 12.3}) == line
