"""Which engine plays a group: one for each version of the policy, or one that goes on with newer weights."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from embodyflow.config import RunConfig
from embodyflow.data.plans.row_plan import WeightsRef
from embodyflow.references import resolve
from embodyflow.workers.calls import GroupCall
from embodyflow.workers.rows.buffer_client import BufferClient

if TYPE_CHECKING:  # torch, which the flow's process does without
    from embodyflow.nodes.engines import GroupEngine, InterruptibleGroupEngine

EngineT = TypeVar("EngineT", bound="GroupEngine", covariant=True)


class Lane(Protocol):
    """An engine and the number of groups that it plays."""

    num_groups: int

    @property
    def engine(self) -> "GroupEngine":
        """The engine."""


class Lanes(Protocol):
    """The engines of a rollout worker that play groups. No two threads may use it at a time."""

    def lane_of(self, call: GroupCall) -> Lane:
        """Return the lane that plays a group.

        Raises:
            RuntimeError: All engines play groups of other versions.
        """

    def offer(self, weights: Mapping[int, WeightsRef]) -> None:
        """Take note of the versions of the policy that are kept."""

    def end(self) -> None:
        """Cancel all groups."""

    @property
    def num_groups(self) -> int:
        """Number of groups that are played."""


@dataclass(eq=False)
class _Lane(Generic[EngineT]):
    engine: EngineT
    version: int = -1
    num_groups: int = 0


class VersionLanes:
    """Implements :class:`Lanes` with an engine for each version, which loads another when it is idle.

    Args:
        config: Run configuration.
        buffer: This rank's view of the buffers.
    """

    def __init__(self, config: RunConfig, buffer: BufferClient) -> None:
        self._config, self._buffer = config, buffer
        self.lanes: list[_Lane[GroupEngine]] = []

    @property
    def num_groups(self) -> int:
        """Number of groups that are played."""
        return sum(lane.num_groups for lane in self.lanes)

    def offer(self, weights: Mapping[int, WeightsRef]) -> None:
        """Do nothing: a group is played by one version."""

    def end(self) -> None:
        """Cancel all groups; the engines load weights again before they play others."""
        for lane in self.lanes:
            if lane.version >= 0:
                lane.engine.end()
                lane.version = -1

    def lane_of(self, call: GroupCall) -> Lane:
        """Return the lane of a version, or load its weights into an idle engine."""
        version = call.ticket.version
        for lane in self.lanes:
            if lane.version == version:
                return lane
        lane = self._idle_lane(call.num_versions)
        if lane.version >= 0:
            lane.engine.end()
        lane.version = -1  # a load that fails leaves no usable version
        lane.engine.update_weights(self._buffer.get_weights(call.weights[version]), version)
        lane.engine.begin()
        lane.version = version
        return lane

    def _idle_lane(self, num_versions: int) -> "_Lane[GroupEngine]":
        for lane in self.lanes:
            if not lane.num_groups:
                return lane
        if len(self.lanes) == num_versions:
            raise RuntimeError(f"{num_versions} versions of the policy play groups already")
        assert self._config.group_engine is not None
        if self.lanes:
            engine = self.lanes[0].engine.for_another_version()
        else:  # ranks do not matter: a group names its rows
            engine = resolve(self._config.group_engine)(self._config, 0, 1)
        self.lanes.append(_Lane(engine))
        return self.lanes[-1]


class InterruptedLane:
    """Implements :class:`Lanes` with one engine, whose groups go on with the newest version that it is offered.

    Args:
        config: Run configuration.
        buffer: This rank's view of the buffers.
    """

    def __init__(self, config: RunConfig, buffer: BufferClient) -> None:
        self._config, self._buffer = config, buffer
        self._lane: _Lane[InterruptibleGroupEngine] | None = None
        self._newest = -1

    @property
    def num_groups(self) -> int:
        """Number of groups that are played."""
        return 0 if self._lane is None else self._lane.num_groups

    def offer(self, weights: Mapping[int, WeightsRef]) -> None:
        """Let groups go on with these versions, unless newer ones were offered before."""
        if self._lane is not None and self._lane.version >= 0 and max(weights) > self._newest:
            self._newest = max(weights)
            self._lane.engine.offer(
                {version: partial(self._buffer.get_weights, shard) for version, shard in weights.items()}
            )

    def end(self) -> None:
        """Cancel all groups, and forget the versions that were offered."""
        if self._lane is not None and self._lane.version >= 0:
            self._lane.engine.end()
            self._lane.version = self._newest = -1

    def lane_of(self, call: GroupCall) -> Lane:
        """Return the lane of all groups, which is offered the versions that the call names."""
        if self._lane is None:
            assert self._config.interrupted_group_engine is not None
            self._lane = _Lane(resolve(self._config.interrupted_group_engine)(self._config, 0, 1))
        if self._lane.version < 0:
            self._lane.engine.begin()
            self._lane.version = call.ticket.version
        self.offer(call.weights)
        return self._lane


def build_lanes(config: RunConfig, buffer: BufferClient) -> Lanes:
    """Build the engines that the configuration asks for."""
    kind: Callable[[RunConfig, BufferClient], Lanes]
    kind = InterruptedLane if config.rollout.swaps_when_published else VersionLanes
    return kind(config, buffer)
