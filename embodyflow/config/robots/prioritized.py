"""The configuration of prioritised replay."""

from typing import Annotated

from pydantic import Field

from embodyflow.config.base import Config, Fraction

LEARNERS = ("sac", "td3", "crossq")
"""Algorithms whose critics take weighted transitions."""


class PrioritizedConfig(Config):
    """Prioritised replay (Schaul et al. 2016, arXiv:1511.05952), which draws transitions with large errors more often.

    Attributes:
        exponent: α. A transition is drawn in proportion to the α-th power of its last error; 0 would draw uniformly.
        correction: β of the importance weights (N·P)^-β in the critics' losses, relative to the largest of the batch; 1
            makes up for the draws in full, 0 does not.
    """

    exponent: Annotated[float, Field(gt=0, le=1)] = 0.6
    correction: Fraction = 0.4


def check_prioritized(name: str, *, is_control: bool, has_demonstrations: bool, has_hindsight: bool) -> None:
    """Refuse settings with which a transition has no priority of its own.

    Args:
        name: Value of ``off_policy.name``.
        is_control: Whether the job is a control job.
        has_demonstrations: Whether batches have transitions of another run.
        has_hindsight: Whether transitions are relabelled.

    Raises:
        ValueError: One line with the key and what is allowed.
    """
    if name not in LEARNERS:
        raise ValueError(f"off_policy.prioritized: must be null with off_policy.name={name}; allowed are {_names()}")
    if not is_control:
        raise ValueError("off_policy.prioritized: must be null with job=embodied; allowed is a control job")
    if has_demonstrations:
        raise ValueError(
            "off_policy.demonstrations: must be null with off_policy.prioritized, since transitions of another run "
            "have no priorities"
        )
    if has_hindsight:
        raise ValueError(
            "off_policy.hindsight: must be null with off_policy.prioritized, since an error belongs to one goal"
        )


def _names() -> str:
    return f"{', '.join(LEARNERS[:-1])} and {LEARNERS[-1]}"
