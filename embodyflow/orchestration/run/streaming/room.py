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
        self._num_open = num_workers

    def open(self, num_workers: int) -> None:
        """Offer room on so many workers, the first ones; those that are not there any more must be empty."""
        assert self.is_empty_from(num_workers), "a worker plays to the end what it has begun"
        del self._playing[num_workers:]
        self._playing += [Counter() for _ in range(num_workers - len(self._playing))]
        self._num_open = num_workers

    def close_from(self, rank: int) -> None:
        """Offer no room for further groups on the workers from a rank on."""
        self._num_open = min(self._num_open, rank)

    def is_empty_from(self, rank: int) -> bool:
        """Return True if the workers from a rank on play nothing."""
        return not any(self._playing[rank:])

    def for_version(self, version: int) -> int | None:
        """Return the worker with the fewest groups that has room for one of this version, or ``None``."""
        open_ones = enumerate(self._playing[: self._num_open])
        fitting = [rank for rank, playing in open_ones if self._fits(playing, version)]
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
