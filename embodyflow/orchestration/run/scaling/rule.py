"""When the number of rollout workers changes: a rule without processes.

A worker starts if the trainer waits for rows. A worker ends if the others could do its work and would still be idle for
a good part of the time. So the trainer does not begin to wait because a worker has ended, and with a constant load the
number goes one way until it stays.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from embodyflow.config.autoscale import AutoscaleConfig


@dataclass(frozen=True)
class Waits:
    """How long an iteration waited.

    Attributes:
        num_workers: Number of rollout workers of the iteration.
        trainer: Share of the iteration in which the trainer waited for rows.
        rollout: Share of the iteration in which rollout workers were idle, as a mean over workers.
    """

    num_workers: int
    trainer: float
    rollout: float


def next_number(number: int, waits: Sequence[Waits], settings: AutoscaleConfig) -> int:
    """Return the number of rollout workers of the next iteration.

    Args:
        number: Present number.
        waits: Waits of the iterations so far, the newest last. Only the last ``patience`` of those with the present
            number count.
        settings: Bounds and shares.
    """
    recent = [each for each in waits if each.num_workers == number][-settings.patience :]
    votes = {_vote(each, settings) for each in recent}
    step = votes.pop() if len(recent) == settings.patience and len(votes) == 1 else 0
    return min(max(number + step, settings.min_workers), settings.max_workers)


def idle_without_one(waits: Waits) -> float:
    """Return the share in which one worker less would be idle with the same work; below 0 they lack time for it."""
    others = waits.num_workers - 1
    return 1.0 - waits.num_workers * (1.0 - waits.rollout) / others if others else float("-inf")


def _vote(waits: Waits, settings: AutoscaleConfig) -> int:
    """Return 1 for a further worker, -1 for one less and 0 for the present number.

    Where the trainer waits although a worker could be spared, more of them do not help: one long episode may hold up
    all.
    """
    wants_more, can_spare = waits.trainer > settings.trainer_wait, idle_without_one(waits) > settings.rollout_idle
    return int(wants_more) - int(can_spare)
