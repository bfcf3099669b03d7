"""The jobs of consecutive iterations, in the order that the run keeps (:mod:`embodyflow.orchestration.run.iterations`).

===================  ==========================================================================================
rollout of i         after the commit of i − 1 − k, which publishes its weights, and after the rollout of i − 1
other nodes of i     after the commit of i − 1 and after their parents
commit of i          after all nodes of i
checkpoint of i      after its commit, beside the rollout of i + 1, on the trainer's ranks before their next node
===================  ==========================================================================================

k is ``rollout.max_staleness``. Nodes of the trainer with a model run in lockstep.

In streaming the rollout's first node is one job per group. A worker takes the next
group as soon as it is free, of whichever iteration, so rollouts wait for their weights and not for each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from embodyflow.forecast.events import Job
from embodyflow.forecast.record import Cost, Sample
from embodyflow.graph import TaskGraph
from embodyflow.graph.node_groups import Group, group_of, runs_on
from embodyflow.orchestration.run.iterations.graph_run import rollout_nodes

MOST_LANES = 8
"""Most lanes of rollout workers in streaming; with more workers a lane has several, which take groups together."""
MOST_TURNS = 6
"""Most jobs of an iteration that a lane takes one after the other in streaming."""
FLOW = "flow"


@dataclass(frozen=True)
class Shape:
    """How iterations are run.

    Attributes:
        workers: Rollout workers.
        ranks: Trainer ranks.
        staleness: Versions that rollouts may lag behind, k.
        num_groups: Groups of an iteration in streaming; ``None`` rolls out whole iterations.
        takes_turns: Whether rollouts and training use the same devices and take turns.
    """

    workers: int
    ranks: int
    staleness: int = 0
    num_groups: int | None = None
    takes_turns: bool = False

    def size_of(self, group: Group) -> int:
        """Return the number of ranks of a group."""
        return self.workers if group == "rollout" else self.ranks


@dataclass(frozen=True)
class Work:
    """A job and what it belongs to.

    Attributes:
        job: The job.
        iteration: Index of its iteration, from 0.
        group: Worker group that it runs on, or the flow.
        node: The node; ``commit`` or ``checkpoint``, or empty for what is between nodes.
    """

    job: Job
    iteration: int
    group: str
    node: str = ""


def schedule(graph: TaskGraph, samples: Sequence[Sample], shape: Shape) -> list[Work]:
    """Return the work of consecutive iterations, one for each sample."""
    return _Schedule(graph, shape).of(samples)


class _Schedule:
    def __init__(self, graph: TaskGraph, shape: Shape) -> None:
        self._graph, self._shape, self._rollout = graph, shape, rollout_nodes(graph)
        self._order = graph.get_execution_order()
        self._work: list[Work] = []
        self._commits: list[int] = []
        self._rolled_out: tuple[int, ...] = ()

    def of(self, samples: Sequence[Sample]) -> list[Work]:
        for iteration, sample in enumerate(samples):
            self._add_iteration(iteration, sample)
        return self._work

    def _add_iteration(self, iteration: int, sample: Sample) -> None:
        ends: dict[str, tuple[int, ...]] = {}
        lane, ranks = self._lane("trainer"), self._shape.ranks
        for node in self._order:
            parents = self._graph.nodes[node].dependencies
            after = tuple(end for parent in parents for end in ends[parent])
            after += self._turn(iteration, node)
            between = self._add(iteration, FLOW, "", sample.between, after)
            if node == self._order[0] and self._commits:
                before = (self._commits[-1], between)
                self._add(iteration - 1, "trainer", "checkpoint", sample.checkpoint, before, lane, ranks)
            ends[node] = self._add_node(iteration, node, sample.nodes[node], (between,))
        self._rolled_out = tuple(end for node in self._rollout for end in ends[node])
        everything = tuple(end for each in ends.values() for end in each)
        commit = self._add(iteration, FLOW, "commit", sample.commit, everything, lane, ranks, lockstep=True)
        self._commits.append(commit)

    def _turn(self, iteration: int, node: str) -> tuple[int, ...]:
        """Return the work of earlier iterations that a node waits for."""
        ahead = self._shape.staleness if node in self._rollout else 0
        published = iteration - 1 - ahead
        before = (self._commits[published],) if published >= 0 else ()
        waits = node in self._rollout and self._shape.num_groups is None
        return before + (self._rolled_out if waits else ())

    def _add_node(self, iteration: int, node: str, cost: Cost, after: tuple[int, ...]) -> tuple[int, ...]:
        """Add the jobs of a node and return their positions. Nodes without a model run beside others."""
        group = runs_on(self._graph, node)
        size, own_model = self._shape.size_of(group), group_of(self._graph.nodes[node])
        if self._shape.num_groups is not None and node in self._rollout and own_model == "rollout":
            return self._add_groups(iteration, node, cost, after)
        lane = self._lane(group) if own_model else ()
        lockstep = own_model == "trainer"
        return (self._add(iteration, group, node, cost, after, lane, size, lockstep=lockstep),)

    def _add_groups(self, iteration: int, node: str, cost: Cost, after: tuple[int, ...]) -> tuple[int, ...]:
        workers, num_groups = self._shape.workers, self._shape.num_groups or 1
        num_lanes = min(workers, MOST_LANES)
        num_jobs = min(num_groups, MOST_TURNS * num_lanes)
        lanes = tuple(f"rollout {lane}" for lane in range(num_lanes))
        each = cost.times(num_lanes / num_jobs)
        width = workers / num_lanes
        jobs = range(num_jobs)
        return tuple(self._add(iteration, "rollout", node, each, after, lanes, width) for _ in jobs)

    def _lane(self, group: Group) -> tuple[str, ...]:
        return ("devices",) if self._shape.takes_turns else (group,)

    def _add(
        self,
        iteration: int,
        group: str,
        node: str,
        cost: Cost,
        after: tuple[int, ...],
        lanes: tuple[str, ...] = (),
        size: float = 1,
        *,
        lockstep: bool = False,
    ) -> int:
        name = f"{node or 'between nodes'} {iteration + 1}"
        processes = max(round(size), 1)
        job = Job(name, lanes, cost.seconds, cost.computing * size, after, processes, lockstep)
        self._work.append(Work(job, iteration, group, node))
        return len(self._work) - 1
