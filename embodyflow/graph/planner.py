"""Where each node of a graph runs on a cluster: a pure function, which needs no cluster to answer.

A *device* is a GPU, or a core where there are no GPUs; it carries one *worker*, and a worker has a *rank*.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from embodyflow.errors import ConfigError
from embodyflow.graph.chains import Chain, split, whole
from embodyflow.graph.graph import TaskGraph
from embodyflow.graph.memory import FORWARD_BYTES, TRAINING_BYTES, ModelSize, parse_num_params, training_bytes
from embodyflow.graph.node import Node, NodeRole, NodeType

Ranks = tuple[int, ...]
Side = Literal["all", "rollout", "train"]


@dataclass(frozen=True)
class Cluster:
    """What the graph is planned for.

    Attributes:
        num_nodes: machines.
        cpus_per_node, gpus_per_node: devices are the GPUs, or the cores where there are no GPUs.
        device_gib: memory of one device; ``None`` leaves it unchecked.
    """

    num_nodes: int
    cpus_per_node: int
    gpus_per_node: int = 0
    device_gib: float | None = None

    def __post_init__(self) -> None:
        if self.num_nodes < 1 or self.cpus_per_node < 1 or self.gpus_per_node < 0:
            raise ConfigError("cluster: num_nodes and cpus_per_node must be at least 1, gpus_per_node at least 0")

    @property
    def devices_per_node(self) -> int:
        """Workers on one machine."""
        return self.gpus_per_node or self.cpus_per_node

    @property
    def num_workers(self) -> int:
        """Workers in all; worker ``rank`` runs on machine ``rank // devices_per_node``."""
        return self.num_nodes * self.devices_per_node


@dataclass(frozen=True)
class Layout:
    """How a group cuts one copy of a model.

    Attributes:
        tensor: tensor-parallel ranks; neighbours in the group.
        pipeline: pipeline-parallel stages.
    """

    tensor: int = 1
    pipeline: int = 1

    @property
    def model_parallel(self) -> int:
        """Ranks that hold one copy together."""
        return self.tensor * self.pipeline

    def coordinates(self, index: int) -> tuple[int, int, int]:
        """Return the (data, pipeline, tensor) rank of the worker at ``index`` in its group."""
        copy, local = divmod(index, self.model_parallel)
        return copy, *divmod(local, self.tensor)


@dataclass(frozen=True)
class PlanSettings:
    """What the user decides.

    Attributes:
        placement: of rollout and training. ``colocated``: all workers do both, in turn.
            ``disaggregated``: some roll out, the others train. ``hybrid``: all roll out, some also train.
        train_share: fraction of a chain's workers that train, where not all do; at least one does.
        branches: ``parallel`` gives each path through the graph its own workers; ``serial`` gives all workers
            to all nodes.
        assignment: of the workers left over after an even share: ``param_aware`` to the largest chains,
            ``even`` in the order of the chains' ids.
        rollout_layout, train_layout: how groups cut their model.
        model: of every model node; a node's ``config.model_params`` overrides the number of parameters.
        rollout_bytes: of a parameter where rows are rolled out: 4 in float32, 2 in 16 bits.
        has_adapters: the policy without its adapters (LoRA) is the reference, which takes nothing beside it.
        is_frozen: of the policy nothing but adapters is ever trained.
    """

    placement: Literal["colocated", "disaggregated", "hybrid"] = "colocated"
    train_share: float = 0.5
    branches: Literal["parallel", "serial"] = "parallel"
    assignment: Literal["param_aware", "even"] = "param_aware"
    rollout_layout: Layout = Layout()
    train_layout: Layout = Layout()
    model: ModelSize = field(default_factory=ModelSize)
    rollout_bytes: int = 4
    has_adapters: bool = False
    is_frozen: bool = False

    def layout_of(self, node: Node) -> Layout:
        """Return how the node's group cuts its model; other nodes have none to cut."""
        if not node.node_type.is_model:
            return Layout()
        return self.rollout_layout if _rolls_out(node) else self.train_layout

    def model_of(self, node: Node) -> ModelSize:
        """Return the size of the node's model.

        Raises:
            ConfigError: the node's ``model_params`` is not a number.
        """
        if "model_params" not in node.config:
            return self.model
        num_params = parse_num_params(node.config["model_params"], f"node {node.node_id!r}")
        return replace(self.model, num_params=num_params)


@dataclass(frozen=True)
class Plan:
    """Where everything runs.

    Attributes:
        graph, cluster, settings: what was planned.
        chains: chain to the ranks of its workers, ascending.
        node_ranks: node to the ranks that run it, ascending.
    """

    graph: TaskGraph
    cluster: Cluster
    settings: PlanSettings
    chains: Mapping[Chain, Ranks]
    node_ranks: Mapping[str, Ranks]

    @cached_property
    def groups(self) -> dict[str, Ranks]:
        """Process groups: name to ranks, in rank order; nodes on the same ranks share one."""
        distinct = sorted(set(self.node_ranks.values()))
        return {f"process_group_{index}": ranks for index, ranks in enumerate(distinct, start=1)}

    @cached_property
    def memory(self) -> list[float]:
        """Estimated bytes on each rank (:mod:`embodyflow.graph.memory`)."""
        return [self._bytes_on(rank) for rank in range(self.cluster.num_workers)]

    def group_of(self, node_id: str) -> str:
        """Return the name of the group that runs the node."""
        return next(name for name, ranks in self.groups.items() if ranks == self.node_ranks[node_id])

    def data_parallel(self, node_id: str) -> int:
        """Return how many shards the node's rows are cut into."""
        layout = self.settings.layout_of(self.graph.nodes[node_id])
        return len(self.node_ranks[node_id]) // layout.model_parallel

    @property
    def fits(self) -> bool:
        """Whether the estimate stays within every device's memory; true where that is not known."""
        limit = self.cluster.device_gib
        return limit is None or max(self.memory) <= limit * 2**30

    def _bytes_on(self, rank: int) -> float:
        """Add up the models on a worker: one per role, at the most that a node of the role needs."""
        per_role: dict[NodeRole, float] = {}
        for node_id, ranks in self.node_ranks.items():
            node = self.graph.nodes[node_id]
            if rank in ranks and node.node_type.is_model:
                for role, needed in _bytes_of(node, len(ranks), self.settings).items():
                    per_role[role] = max(needed, per_role.get(role, 0.0))
        if self.settings.has_adapters and NodeRole.ACTOR in per_role:
            per_role.pop(NodeRole.REFERENCE, None)
        return sum(per_role.values())


def plan(graph: TaskGraph, cluster: Cluster, settings: PlanSettings | None = None) -> Plan:
    """Place a graph on a cluster.

    Args:
        graph: a valid graph.
        cluster: what there is.
        settings: what the user decides; the default is everything on all workers.

    Raises:
        ConfigError: the cluster is too small for the graph's branches or the placement, or a group cannot be
            cut by its layout.
    """
    settings = settings or PlanSettings()
    serial = settings.branches == "serial"
    chains = [whole(graph)] if serial else split(graph, max_chains=cluster.num_workers)
    sizes = {chain: _size(chain, graph, settings) for chain in chains}
    counts = _share_out(sizes, cluster.num_workers, settings.assignment)
    ranks = _seat(counts, sizes, cluster)
    node_ranks = _node_ranks(graph, ranks, settings)
    for node_id, of_node in node_ranks.items():
        cut = settings.layout_of(graph.nodes[node_id]).model_parallel
        if len(of_node) % cut:
            raise ConfigError(
                f"node {node_id!r}: its {len(of_node)} workers are no multiple of tensor × pipeline = {cut}"
            )
    return Plan(graph, cluster, settings, ranks, node_ranks)


def _size(chain: Chain, graph: TaskGraph, settings: PlanSettings) -> float:
    """Return a chain's parameters, or the number of its nodes where no node has a model."""
    models = [graph.nodes[node_id] for node_id in chain.nodes if graph.nodes[node_id].node_type.is_model]
    if not models:
        return float(len(chain.nodes))
    return sum(settings.model_of(node).num_params for node in models)


def _share_out(sizes: Mapping[Chain, float], num_workers: int, assignment: str) -> dict[Chain, int]:
    """Give every chain the same number of workers, and one more to the first while any are left."""
    by_id = sorted(sizes, key=lambda chain: chain.chain_id)
    order = sorted(by_id, key=lambda chain: -sizes[chain]) if assignment == "param_aware" else by_id
    each, left_over = divmod(num_workers, len(order))
    return {chain: each + (position < left_over) for position, chain in enumerate(order)}


def _seat(counts: Mapping[Chain, int], sizes: Mapping[Chain, float], cluster: Cluster) -> dict[Chain, Ranks]:
    """Choose ranks: a chain stays on the machines it is on already, else goes to the emptiest machine."""
    per_node = cluster.devices_per_node
    free = [list(range(node * per_node, (node + 1) * per_node)) for node in range(cluster.num_nodes)]
    seated: dict[Chain, Ranks] = {}
    for chain in sorted(counts, key=lambda chain: (-counts[chain], -sizes[chain], chain.chain_id)):
        taken: list[int] = []
        for _ in range(counts[chain]):
            homes = {rank // per_node for rank in taken}
            _, _, _, node = max(
                (node in homes, len(ranks), -ranks[0], node) for node, ranks in enumerate(free) if ranks
            )
            taken.append(free[node].pop(0))
        seated[chain] = tuple(sorted(taken))
    return seated


def _node_ranks(graph: TaskGraph, chains: Mapping[Chain, Ranks], settings: PlanSettings) -> dict[str, Ranks]:
    """Return each node's ranks: its part of the workers of every chain that it is on."""
    found: dict[str, set[int]] = {node_id: set() for node_id in graph.nodes}
    for chain, ranks in chains.items():
        sides = _sides(chain, ranks, graph, settings)
        for node_id in chain.nodes:
            found[node_id].update(sides[_side_of(node_id, chain, graph)])
    return {node_id: tuple(sorted(ranks)) for node_id, ranks in found.items()}


def _side_of(node_id: str, chain: Chain, graph: TaskGraph) -> Side:
    """Return which of a chain's workers run the node; a ``COMPUTE`` node stays where its rows were made."""
    for candidate in (node_id, *(name for name in graph.ancestors(node_id) if name in chain.nodes)):
        node = graph.nodes[candidate]
        if node.node_type.is_model:
            return "rollout" if _rolls_out(node) else "train"
        if node.node_type is NodeType.DATA_LOAD:
            break
    return "all"


def _sides(chain: Chain, ranks: Ranks, graph: TaskGraph, settings: PlanSettings) -> dict[Side, Ranks]:
    """Divide a chain's workers into those that roll out and those that train, where it does both."""
    models = [graph.nodes[node_id] for node_id in chain.nodes if graph.nodes[node_id].node_type.is_model]
    one_sided = len({_rolls_out(model) for model in models}) < 2
    if settings.placement == "colocated" or one_sided:
        return {"all": ranks, "rollout": ranks, "train": ranks}
    num_train = min(max(1, round(settings.train_share * len(ranks))), len(ranks))
    if settings.placement == "hybrid":
        return {"all": ranks, "rollout": ranks, "train": ranks[-num_train:]}
    if len(ranks) < 2:
        raise ConfigError(f"placement=disaggregated: chain {chain.chain_id} has 1 worker and needs at least 2")
    num_train = min(num_train, len(ranks) - 1)
    return {"all": ranks, "rollout": ranks[:-num_train], "train": ranks[-num_train:]}


def _rolls_out(node: Node) -> bool:
    return node.node_role is NodeRole.ROLLOUT


def _bytes_of(node: Node, num_ranks: int, settings: PlanSettings) -> dict[NodeRole, float]:
    """Return what the models that a node needs take on each of its workers, by role."""
    model, cut, role = settings.model_of(node), settings.layout_of(node).model_parallel, node.node_role
    as_it_is = FORWARD_BYTES * model.num_params / num_ranks
    if _rolls_out(node):
        return {role: settings.rollout_bytes * model.num_params / cut}
    if role is NodeRole.CRITIC:  # trained, if not by this node then with the policy: why else would there be one?
        return {role: training_bytes(model, num_ranks, cut)}
    if not node.changes_weights:
        return {role: as_it_is}
    if role is not NodeRole.ACTOR:
        return {role: training_bytes(model, num_ranks, cut)}
    trained = training_bytes(model, num_ranks, cut, FORWARD_BYTES if settings.is_frozen else TRAINING_BYTES)
    # The trainer keeps what the policy was at the start of RL, whether a node asks for it or not.
    return {role: trained} if settings.has_adapters else {role: trained, NodeRole.REFERENCE: as_it_is}
