"""Which groups start and which are trained, over any arrival times: no stale row, no deadlock, no growth."""

import random
from collections import deque
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodyflow.data.streaming.tickets import Selection, Ticket
from embodyflow.orchestration.run.streaming.admission import Admission, ByIndex, FirstReady, FirstReadyWithin, Sizes

ORDERS = (ByIndex, FirstReady, FirstReadyWithin)
SIZES = st.builds(Sizes, st.integers(1, 4), st.integers(0, 3), st.integers(1, 8))

Action = Callable[[bool], bool]
"""Takes a step of a run if its argument is true; otherwise returns whether the step is possible."""


class Line:
    """Workers with some room and a trainer, which act in any order; the ledger is a list."""

    def __init__(self, order: type[Admission], sizes: Sizes, room: int, rng: random.Random) -> None:
        self._order, self._sizes, self._room, self._rng = order, sizes, room, rng
        self.ledger: list[Selection] = []
        self.version = 0
        self.stream = order(sizes, 0)
        self._playing: list[Ticket] = []

    def run(self, disturb: Callable[["Line"], None] = lambda line: None) -> None:
        """Act until all iterations are trained; every state must allow an action."""
        while self.version < self._sizes.iterations:
            disturb(self)
            actions = [action for action in self._actions if action(False)]
            assert actions, "deadlock"
            self._rng.choice(actions)(True)
            self._check()

    def lose_everything(self, version: int) -> None:
        """Let all processes die; of the trained versions those up to ``version`` are left, and the ledger."""
        self.version, self._playing = version, []
        self.stream = self._order(self._sizes, version, self.ledger)

    @property
    def _actions(self) -> list[Action]:
        return [self._start, self._finish, self._select, self._train]

    def _start(self, act: bool) -> bool:
        ticket = self.stream.upcoming()
        if ticket is None or len(self._playing) >= self._room:
            return False
        if act:
            assert 0 <= ticket.version <= self.version, "these weights do not exist"
            self.stream.start(ticket)
            self._playing.append(ticket)
        return True

    def _finish(self, act: bool) -> bool:
        if act:
            ticket = self._playing.pop(self._rng.randrange(len(self._playing)))
            self.stream.finish(ticket)
        return bool(self._playing) or act

    def _select(self, act: bool) -> bool:
        """Select for an iteration that has begun: those after ``version`` and k more."""
        if len(self.ledger) > self.version + self._sizes.max_staleness or len(self.ledger) == self._sizes.iterations:
            return False
        if act and (selection := self.stream.select()) is not None:
            self.ledger.append(selection)
        return act or self.stream._choose() is not None

    def _train(self, act: bool) -> bool:
        if act:
            self.version += 1
            self.stream.advance(self.version)
        return len(self.ledger) > self.version or act

    def _check(self) -> None:
        sizes = self._sizes
        if self.stream.num_open:  # after a death, more may be selected than the version then allows
            assert self.stream.num_selected * sizes.batch + self.stream.num_open <= sizes.batch * (
                sizes.max_staleness + self.version + 1
            )
        for selection in self.ledger[-1:]:
            assert all(0 <= staleness <= sizes.max_staleness for staleness in selection.staleness)
            assert len(selection.groups) == sizes.batch

    def check_end(self) -> None:
        trained = [ticket.group for selection in self.ledger for ticket in selection.groups]
        assert sorted(trained) == [*range(self._sizes.batch * self._sizes.iterations)], "each group is trained once"
        assert [selection.iteration for selection in self.ledger] == [*range(1, self._sizes.iterations + 1)]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(ORDERS), SIZES, st.integers(1, 20), st.randoms(use_true_random=False))
def test_every_group_is_trained_once_and_none_is_too_old(
    order: type[Admission], sizes: Sizes, room: int, rng: random.Random
) -> None:
    line = Line(order, sizes, room, rng)
    line.run()
    line.check_end()
    assert line.stream.upcoming() is None and line.stream.num_open == 0, "the source is empty"
    if order is not FirstReady:
        assert not any(selection.dropped for selection in line.ledger)


@settings(max_examples=30, deadline=None)
@given(SIZES, st.integers(1, 20), st.randoms(use_true_random=False))
def test_by_index_nothing_depends_on_timing(sizes: Sizes, room: int, rng: random.Random) -> None:
    line = Line(ByIndex, sizes, room, rng)
    line.run()
    assert line.ledger == [
        Selection(
            index,
            tuple(
                Ticket(group, 0, max(index - 1 - sizes.max_staleness, 0))
                for group in range((index - 1) * sizes.batch, index * sizes.batch)
            ),
        )
        for index in range(1, sizes.iterations + 1)
    ]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(ORDERS), SIZES, st.integers(1, 20), st.integers(0, 2**32))
def test_decisions_in_the_ledger_survive_deaths(order: type[Admission], sizes: Sizes, room: int, seed: int) -> None:
    """A death may take the run back to an earlier version; what the ledger says is never said again."""
    rng = random.Random(seed)

    def disturb(line: Line) -> None:
        if rng.random() < 0.1:
            line.lose_everything(max(line.version - rng.randrange(2), 0))

    line = Line(order, sizes, room, rng)
    line.run(disturb)
    line.check_end()
    attempts = [(ticket.group, ticket.attempt) for each in line.ledger for ticket in (*each.groups, *each.dropped)]
    assert len(set(attempts)) == len(attempts), "no draw is repeated"


class InterruptedLine(Line):
    """A line whose groups sample token after token, each with the newest version, or with the one that a record names.

    What the ledger names is played again after a death, and waits for versions that are trained again.
    """

    LENGTH = 3

    def __init__(self, order: type[Admission], sizes: Sizes, room: int, rng: random.Random) -> None:
        super().__init__(order, sizes, room, rng)
        self.record: dict[Ticket, list[int]] = {}  # versions of the tokens of groups that the ledger names
        self._tokens: dict[Ticket, list[int]] = {}
        self._missing: list[Ticket] = []
        self._ready: set[Ticket] = set()

    def lose_everything(self, version: int) -> None:
        super().lose_everything(version)
        self._tokens, self._ready = {}, set()
        self._missing = [ticket for selection in self.ledger[version:] for ticket in selection.groups]

    @property
    def _actions(self) -> list[Action]:
        return [*super()._actions, self._decode]

    def _start(self, act: bool) -> bool:
        if not self._missing:
            return super()._start(act)
        can = len(self._playing) < self._room and self._missing[0].version <= self.version
        if act:
            self._playing.append(self._missing.pop(0))
        return can

    def _decode(self, act: bool) -> bool:
        open_ones = [each for each in self._playing if len(self._tokens.get(each, ())) < self.LENGTH]
        able = [each for each in open_ones if self._next_version(each) <= self.version]
        if act:
            ticket = self._rng.choice(able)
            self._tokens.setdefault(ticket, []).append(self._next_version(ticket))
        return bool(able)

    def _next_version(self, ticket: Ticket) -> int:
        recorded = self.record.get(ticket)
        return self.version if recorded is None else recorded[len(self._tokens.get(ticket, ()))]

    def _finish(self, act: bool) -> bool:
        whole = [each for each in self._playing if len(self._tokens.get(each, ())) == self.LENGTH]
        if act:
            ticket = self._rng.choice(whole)
            self._playing.remove(ticket)
            if ticket in self.record:
                self._ready.add(ticket)
            else:
                self.stream.finish(ticket)
        return bool(whole)

    def _select(self, act: bool) -> bool:
        number = len(self.ledger)
        can = super()._select(act)
        for selection in self.ledger[number:]:
            self.record |= {ticket: self._tokens[ticket] for ticket in selection.groups}
            self._ready.update(selection.groups)
        return can

    def _train(self, act: bool) -> bool:
        is_there = act or (super()._train(False) and self._ready.issuperset(self.ledger[self.version].groups))
        if act:
            for ticket in self.ledger[self.version].groups:
                self.trained(self.version + 1, self._tokens[ticket])
            super()._train(True)
        return is_there

    def trained(self, iteration: int, versions: list[int]) -> None:
        """Check the tokens of a group that an iteration trains on."""
        assert self._sizes.oldest(iteration) <= min(versions) <= max(versions) < iteration


@settings(max_examples=100, deadline=None)
@given(st.sampled_from((FirstReady, FirstReadyWithin)), SIZES, st.integers(1, 20), st.integers(0, 2**32), st.booleans())
def test_no_token_is_too_old_and_nothing_waits_for_ever_if_weights_change_within_rows(
    order: type[Admission], sizes: Sizes, room: int, seed: int, dies: bool
) -> None:
    """Zero capacity, dropped groups and an empty source are among the sizes; each state must allow an action."""
    rng = random.Random(seed)

    def disturb(line: Line) -> None:
        if dies and rng.random() < 0.05:
            line.lose_everything(max(line.version - rng.randrange(2), 0))

    line = InterruptedLine(order, sizes, room, rng)
    line.run(disturb)
    line.check_end()


def started(stream: Admission, number: int) -> list[Ticket]:
    tickets = []
    for _ in range(number):
        ticket = stream.upcoming()
        assert ticket is not None
        stream.start(ticket)
        tickets.append(ticket)
    return tickets


def finish(stream: Admission, tickets: Iterable[Ticket]) -> None:
    for ticket in tickets:
        stream.finish(ticket)


def test_at_zero_capacity_nothing_starts_until_a_version_is_published() -> None:
    stream = FirstReady(Sizes(batch=2, max_staleness=0, iterations=3), 0)
    first = started(stream, 2)
    assert stream.upcoming() is None
    finish(stream, first)
    assert stream.upcoming() is None
    assert stream.select() == Selection(1, ((0, 0, 0), (1, 0, 0)))  # type: ignore[arg-type]
    assert stream.upcoming() is None
    stream.advance(1)
    assert stream.upcoming() == Ticket(2, 0, 1)


def test_a_group_that_is_too_old_is_drawn_again_and_named() -> None:
    stream = FirstReady(Sizes(batch=1, max_staleness=1, iterations=4), 0)
    slow, quick = started(stream, 2)
    finish(stream, [quick])
    assert stream.select() == Selection(1, (quick,))
    stream.advance(1)
    [second] = started(stream, 1)
    finish(stream, [second])
    assert stream.select() == Selection(2, (second,))
    stream.advance(2)
    finish(stream, [slow])  # too old: iteration 3 trains on versions 1 and 2
    [again] = started(stream, 1)
    assert again == Ticket(slow.group, 1, 2)
    finish(stream, [again])
    assert stream.select() == Selection(3, (again,), (slow,))


def test_an_iteration_waits_for_the_group_whose_last_one_it_is() -> None:
    stream = FirstReadyWithin(Sizes(batch=1, max_staleness=1, iterations=4), 0)
    slow, quick = started(stream, 2)
    finish(stream, [quick])
    assert stream.select() == Selection(1, (quick,))
    stream.advance(1)
    [second] = started(stream, 1)
    finish(stream, [second])
    assert stream.select() is None  # iteration 2 is the last that may train on version 0
    finish(stream, [slow])
    assert stream.select() == Selection(2, (slow,))
    assert stream.select() == Selection(3, (second,))


def test_iterations_leave_no_more_old_groups_than_the_next_ones_can_take() -> None:
    """Of four slow groups of version 0, iteration 2 takes two: iteration 3, the last for them, has room for two."""
    stream = FirstReadyWithin(Sizes(batch=2, max_staleness=2, iterations=4), 0)
    groups = started(stream, 6)
    finish(stream, groups[:2])
    assert stream.select() == Selection(1, tuple(groups[:2]))
    stream.advance(1)
    young = started(stream, 2)
    finish(stream, young)
    assert stream.select() is None
    finish(stream, groups[2:])
    assert stream.select() == Selection(2, tuple(groups[2:4]))
    assert stream.select() == Selection(3, tuple(groups[4:]))
    assert stream.select() == Selection(4, tuple(young))


def test_the_ledger_keeps_a_selection() -> None:
    selection = Selection(3, (Ticket(4, 1, 2), Ticket(5, 0, 1)), (Ticket(4, 0, 0),))
    assert Selection.of_facts(3, selection.facts()) == selection
    assert selection.staleness == [0, 1]


@pytest.mark.parametrize("order", ORDERS)
def test_memory_is_flat_over_500_iterations(order: type[Admission]) -> None:
    sizes, numbers = Sizes(batch=4, max_staleness=2, iterations=500), list[int]()

    def count(line: Line) -> None:
        numbers.append(sum(len(value) for value in vars(line.stream).values() if isinstance(value, set | list | deque)))

    line = Line(order, sizes, 12, random.Random(0))
    line.run(count)
    assert len(line.ledger) == 500
    open_at_most = sizes.batch * (sizes.max_staleness + 1)
    assert max(numbers) <= 2 * open_at_most, "only open groups and those to draw again are kept"
