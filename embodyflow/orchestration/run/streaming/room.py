"""Which rollout workers have room for a further group."""

from collections import Counter


class Room:
    """The groups that workers play, by version of the policy.

    Args:
        num_workers: Number of workers.
        groups: Most groups that a worker plays at a time.
        versions: Most versions that a worker acts with at a time.
    """

    def __init__(self, num_workers: int, groups: int, versions: int) -> None:
        self._groups, self._versions = groups, versions
        self._playing: list[Counter[int]] = [Counter() for _ in range(num_workers)]

    def for_version(self, version: int) -> int | None:
        """Return the worker with the fewest groups that has room for one of this version, or ``None``."""
        fitting = [rank for rank, playing in enumerate(self._playing) if self._fits(playing, version)]
        return min(fitting, key=lambda rank: self._playing[rank].total(), default=None)

    def enter(self, rank: int, version: int) -> None:
        """Note that a worker plays a further group."""
        self._playing[rank][version] += 1

    def leave(self, rank: int, version: int) -> None:
        """Note that a group of a worker has ended."""
        self._playing[rank][version] -= 1
        self._playing[rank] += Counter()  # forget versions without groups

    def _fits(self, playing: Counter[int], version: int) -> bool:
        return playing.total() < self._groups and (version in playing or len(playing) < self._versions)
