"""Policies of several versions, which decide for several threads."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from embodyflow.data.streaming.swaps import LoadWeights, Weights
from embodyflow.rollouts.streaming.shared_decisions import SharedDecisions


class Actor(Protocol):
    """A policy whose weights can be replaced while it decides for nobody."""

    @property
    def decisions(self) -> SharedDecisions:
        """Its decisions."""

    def load(self, weights: Weights) -> None:
        """Decide with these weights from now on."""


@dataclass(eq=False)
class _Lane:
    """The policy of a version, and the number of threads that it decides for."""

    actor: Actor
    version: int
    num_users: int = 0


class PolicyVersions:
    """Lends the policies of versions that have been offered; a policy that nobody uses gives way to another version.

    Args:
        build: Function that builds a further policy.
        limit: Most policies at a time.
    """

    def __init__(self, build: Callable[[], Actor], limit: int) -> None:
        self._build, self._limit = build, limit
        self._lanes: list[_Lane] = []  # the one that was used last comes last
        self._offered: Mapping[int, LoadWeights] = {}
        self._is_ended = False
        self._changed = threading.Condition()

    @property
    def newest(self) -> int:
        """Newest version that was offered."""
        return max(self._offered)

    def offer(self, versions: Mapping[int, LoadWeights]) -> None:
        """Set the versions that can be loaded."""
        with self._changed:
            self._offered = versions
            self._changed.notify_all()

    def end(self) -> None:
        """Lend no policy any more."""
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()

    @contextmanager
    def borrow(self, version: int, deadline: float) -> Iterator[SharedDecisions]:
        """Lend the policy of a version for the block; wait while it is not offered or all policies are in use.

        Args:
            version: The version.
            deadline: Time at which the wait ends, of the monotonic clock.

        Raises:
            TimeoutError: The version was not there in time.
            RuntimeError: No policy is lent any more.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._can_lend(version), deadline - time.monotonic()):
                raise TimeoutError
            if self._is_ended:
                raise RuntimeError("the group was cancelled")
            lane = self._lane_of(version) or self._load(version)
            lane.num_users += 1
            self._lanes.remove(lane)
            self._lanes.append(lane)
        try:
            yield lane.actor.decisions
        finally:
            with self._changed:
                lane.num_users -= 1
                self._changed.notify_all()

    def _can_lend(self, version: int) -> bool:
        """Return True if a wait for a version has an end."""
        has_room = len(self._lanes) < self._limit or self._idle_lane() is not None
        is_loadable = version in self._offered and has_room
        return self._is_ended or is_loadable or self._lane_of(version) is not None

    def _lane_of(self, version: int) -> _Lane | None:
        return next((lane for lane in self._lanes if lane.version == version), None)

    def _idle_lane(self) -> _Lane | None:
        return next((lane for lane in self._lanes if not lane.num_users), None)

    def _load(self, version: int) -> _Lane:
        idle = self._idle_lane() if len(self._lanes) == self._limit else None
        if idle is not None:
            self._lanes.remove(idle)
        actor = self._build() if idle is None else idle.actor
        actor.load(self._offered[version]())
        self._lanes.append(_Lane(actor, version))
        return self._lanes[-1]
