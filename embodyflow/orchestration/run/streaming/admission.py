"""When a group may start, and which groups an iteration trains on: rules without processes.

With B groups per iteration, a bound of k on staleness and v the newest version, the groups that are trained, in flight
or finished are at most (k + v + 1)·B: the capacity rule of AReaL (Fu et al. 2025, arXiv:2505.24298). It bounds when a
group starts. The orders below also bound its age when it is trained: iteration i trains on versions from i − 1 − k.
"""

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from embodyflow.data.streaming.tickets import Selection, Ticket


@dataclass(frozen=True)
class Sizes:
    """Sizes of a stream.

    Attributes:
        batch: Groups that an iteration trains on, B.
        max_staleness: Most versions that a row may lag behind the one that is trained, k.
        iterations: Iterations of the run, which together use ``batch * iterations`` groups.
    """

    batch: int
    max_staleness: int
    iterations: int

    def oldest(self, iteration: int) -> int:
        """Return the oldest version that an iteration may train on."""
        return iteration - 1 - self.max_staleness

    def last_iteration(self, version: int) -> int:
        """Return the last iteration that may train on a version."""
        return version + 1 + self.max_staleness


class Admission(ABC):
    """The groups of a run that have started and are not selected yet.

    Args:
        sizes: Sizes of the stream.
        version: Newest version of the policy.
        selections: Selections of all iterations that have one, from the first on.
    """

    def __init__(self, sizes: Sizes, version: int, selections: Iterable[Selection] = ()) -> None:
        self._sizes, self._version = sizes, version
        self.num_selected = 0
        self._in_flight: set[Ticket] = set()
        self._finished: list[Ticket] = []  # in the order in which they finished
        self._dropped: list[Ticket] = []  # since the last selection
        self._again = deque[tuple[int, int]]()  # index and attempt of groups to start before further ones
        self._next = 0
        self._go_on_after(selections)

    @property
    def num_open(self) -> int:
        """Number of groups that are in flight, or finished and not selected."""
        return len(self._in_flight) + len(self._finished)

    def is_in_flight(self, ticket: Ticket) -> bool:
        """Return True if a group has started and not finished."""
        return ticket in self._in_flight

    def upcoming(self) -> Ticket | None:
        """Return the group that may start now, or ``None`` if none may."""
        sizes = self._sizes
        allowed = (sizes.max_staleness + self._version + 1) * sizes.batch
        if self.num_selected * sizes.batch + self.num_open >= allowed:
            return None
        if self._again:
            index, attempt = self._again[0]
        elif self._next < sizes.batch * sizes.iterations:
            index, attempt = self._next, 0
        else:
            return None
        return Ticket(index, attempt, self._version_of(index))

    def start(self, ticket: Ticket) -> None:
        """Note that the upcoming group has started."""
        assert ticket == self.upcoming(), "groups start in order"
        if self._again:
            self._again.popleft()
        else:
            self._next += 1
        self._in_flight.add(ticket)

    def finish(self, ticket: Ticket) -> None:
        """Note that a group has finished; drop it if it is too old for every iteration that has no selection."""
        self._in_flight.remove(ticket)
        self._finished.append(ticket)
        self._drop_too_old()

    def advance(self, version: int) -> None:
        """Note that a version of the policy is published."""
        self._version = max(self._version, version)

    def select(self) -> Selection | None:
        """Return the selection of the next iteration once its groups have finished, or ``None`` before."""
        chosen = self._choose()
        if chosen is None:
            return None
        self.num_selected += 1
        selection = Selection(self.num_selected, tuple(sorted(chosen)), tuple(self._dropped))
        self._finished = [each for each in self._finished if each not in set(chosen)]
        self._dropped = []
        self._drop_too_old()
        return selection

    @abstractmethod
    def _version_of(self, index: int) -> int:
        """Return the version that acts in a group that starts now."""

    @abstractmethod
    def _choose(self) -> Sequence[Ticket] | None:
        """Return the finished groups that the next iteration trains on, or ``None`` if some are missing."""

    def _drop_too_old(self) -> None:
        oldest = self._sizes.oldest(self.num_selected + 1)
        too_old = [each for each in self._finished if each.version < oldest]
        self._finished = [each for each in self._finished if each.version >= oldest]
        self._dropped += too_old
        self._again.extend((each.group, each.attempt + 1) for each in too_old)

    def _go_on_after(self, selections: Iterable[Selection]) -> None:
        """Continue a stream of which these selections were made."""
        used, attempts = set[int](), dict[int, int]()
        for selection in selections:
            self.num_selected += 1
            used.update(ticket.group for ticket in selection.groups)
            attempts.update({ticket.group: ticket.attempt + 1 for ticket in selection.dropped})
        self._next = max(used, default=-1) + 1
        self._again.extend((index, attempts.get(index, 0)) for index in range(self._next) if index not in used)


class ByIndex(Admission):
    """Iteration i trains on groups (i − 1)·B to i·B − 1, played by version i − 1 − k: nothing depends on timing."""

    def selection(self, iteration: int) -> Selection:
        """Return the selection of an iteration."""
        batch = self._sizes.batch
        indices = range((iteration - 1) * batch, iteration * batch)
        return Selection(iteration, tuple(Ticket(index, 0, self._version_of(index)) for index in indices))

    def _version_of(self, index: int) -> int:
        return max(self._sizes.oldest(index // self._sizes.batch + 1), 0)

    def _choose(self) -> Sequence[Ticket] | None:
        wanted = self.selection(self.num_selected + 1).groups
        return wanted if set(wanted) <= set(self._finished) else None


class FirstReady(Admission):
    """An iteration trains on the first groups that finish; one that has become too old is drawn again."""

    def _version_of(self, index: int) -> int:
        return self._version

    def _choose(self) -> Sequence[Ticket] | None:
        batch = self._sizes.batch
        return self._finished[:batch] if len(self._finished) >= batch else None


class FirstReadyWithin(FirstReady):
    """An iteration trains on the first groups that finish, but waits for those that would otherwise become too old.

    Of the groups whose last iteration is j or before, those that iteration i leaves must fit into iterations i + 1 to
    j. The capacity rule keeps this possible: at most (j − i + 1)·B of them are open.
    """

    def _choose(self) -> Sequence[Ticket] | None:
        sizes, iteration = self._sizes, self.num_selected + 1
        due = Counter(sizes.last_iteration(each.version) for each in (*self._in_flight, *self._finished))
        needed = {
            last: sum(count for other, count in due.items() if other <= last) - (last - iteration) * sizes.batch
            for last in due
        }  # groups of these iterations that this one must take

        def fits(chosen: Sequence[Ticket]) -> bool:
            room, lasts = sizes.batch - len(chosen), [sizes.last_iteration(each.version) for each in chosen]
            return all(number - sum(each <= last for each in lasts) <= room for last, number in needed.items())

        chosen: list[Ticket] = []
        for ticket in self._finished:
            if len(chosen) < sizes.batch and fits([*chosen, ticket]):
                chosen.append(ticket)
        return chosen if len(chosen) == sizes.batch else None
