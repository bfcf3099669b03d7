"""The reward function of jobs whose workflow gives the rewards itself."""

from embodyflow.rewards.interface import Sample, Score

REFERENCE = f"{__name__}:refuse"
"""Reference of :func:`refuse` in a configuration."""


def refuse(sample: Sample) -> Score:
    """Refuse to score, because the workflow must have given a reward.

    Raises:
        ValueError: Always.
    """
    raise ValueError("reward=workflow: the workflow gave this episode no reward; choose a reward function, or give one")
