"""The reward function of jobs whose workflow gives the rewards itself."""

from embodyflow.rewards.interface import Sample, Score


def refuse(sample: Sample) -> Score:
    """Refuse to score, because the workflow must have given a reward.

    Raises:
        ValueError: Always.
    """
    raise ValueError("reward=workflow: the workflow gave this episode no reward; choose a reward function, or give one")
