"""Plan where each node of a graph runs on a cluster. Planning is a pure function and needs no cluster.

A *device* is a GPU, or a core on machines without GPUs. Each device runs one *worker*, and a worker has a *rank*.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from embodyflow.errors import ConfigError
from embodyflow.graph.chains import Chain, single_chain, split
from embodyflow.graph.graph import TaskGraph
from embodyflow.graph.node import Node, NodeRole, NodeType
from embodyflow.graph.planning.memory_estimate import FORWARD_BYTES, ModelSize, parse_num_params, training_bytes

Ranks = tuple[int, ...]
Side = Literal["all", "rollout", "train"]


@dataclass(frozen=True)
class Cluster:
    """The machines to plan for.

    Attributes:
        num_nodes: Number of machines.
        cpus_per_node: Cores per machine; they are the devices of machines without GPUs.
        gpus_per_node: GPUs per machine.
        device_gib: Memory of one device in GiB; ``None`` skips the check.
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
        """Workers on all machines; worker ``rank`` runs on machine ``rank // devices_per_node``."""
        return self.num_nodes * self.devices_per_node


@dataclass(frozen=True)
class Layout:
    """How a group splits one copy of a model.

    Attributes:
        tensor: Tensor-parallel ranks, which are neighbours in the group.
        pipeline: Pipeline-parallel stages.
    """

    tensor: int = 1
    pipeline: int = 1

    @property
    def model_parallel(self) -> int:
        """Ranks that share one copy."""
        return self.tensor * self.pipeline

    def coordinates(self, index: int) -> tuple[int, int, int]:
        """Return the (data, pipeline, tensor) rank of the worker at ``index`` in its group."""
        copy, local = divmod(index, self.model_parallel)
        return copy, *divmod(local, self.tensor)


@dataclass(frozen=True)
class PlanSettings:
    """The user's choices.

    Attributes:
        placement: Placement of rollout and training. ``colocated``: all workers alternate between both.
            ``disaggregated``: some roll out and the others train. ``hybrid``: all roll out and some also train.
        train_share: Fraction of a chain's workers that train if not all do; at least one does.
        branches: ``parallel`` gives each path through the graph its own workers; ``serial`` runs every node on all
            workers.
        assignment: Chains that get the workers left after an even share: ``param_aware`` the largest, ``even`` the
            first by id.
        rollout_layout, train_layout: Layouts of the two groups' models.
        model: Size of every model node's model; a node's ``config.model_params`` overrides the number of parameters.
        critic: Size of the critic; ``None`` is a critic as large as the policy, all of whose parameters are trained.
        rollout_bytes: Bytes of a parameter in rollouts: 4 in float32, 2 in 16 bits.
        has_adapters: True if the policy has adapters (LoRA); the reference is the policy without them and takes no
            memory.
    """

    placement: Literal["colocated", "disaggregated", "hybrid"] = "colocated"
    train_share: float = 0.5
    branches: Literal["parallel", "serial"] = "parallel"
    assignment: Literal["param_aware", "even"] = "param_aware"
    rollout_layout: Layout = Layout()
    train_layout: Layout = Layout()
    model: ModelSize = field(default_factory=ModelSize)
    critic: ModelSize | None = None
    rollout_bytes: int = 4
    has_adapters: bool = False

    def layout_of(self, node: Node) -> Layout:
        """Return the layout of the node's model; a node without a model has a trivial one."""
        if not node.node_type.is_model:
            return Layout()
        return self.rollout_layout if _rolls_out(node) else self.train_layout

    def model_of(self, node: Node) -> ModelSize:
        """Return the size of the node's model.

        Raises:
            ConfigError: The node's ``model_params`` is not a number.
        """
        if "model_params" not in node.config:
            return self.model
        return self.model.resized(parse_num_params(node.config["model_params"], f"node {node.node_id!r}"))

    def critic_of(self, node: Node) -> ModelSize:
        """Return the size of the critic that the node runs."""
        if self.critic is not None:
            return self.critic
        policy = self.model_of(node)
        return ModelSize(policy.num_params, training_activations=policy.training_activations)


@dataclass(frozen=True)
class Plan:
    """The ranks of every chain and node.

    Attributes:
        graph: Graph that the plan places.
        cluster: Cluster that the plan is for.
        settings: Choices that the plan follows.
        chains: Ascending ranks of each chain's workers.
        node_ranks: Ascending ranks that run each node.
    """

    graph: TaskGraph
    cluster: Cluster
    settings: PlanSettings
    chains: Mapping[Chain, Ranks]
    node_ranks: Mapping[str, Ranks]

    @cached_property
    def groups(self) -> dict[str, Ranks]:
        """Ranks of each process group by name, in rank order; nodes on the same ranks share a group."""
        distinct = sorted(set(self.node_ranks.values()))
        return {f"process_group_{index}": ranks for index, ranks in enumerate(distinct, start=1)}

    @cached_property
    def memory(self) -> list[float]:
        """Estimated bytes on each rank, see :mod:`embodyflow.graph.planning.memory_estimate`."""
        return [sum(self.bytes_on(rank).values()) for rank in range(self.cluster.num_workers)]

    def group_of(self, node_id: str) -> str:
        """Return the name of the group that runs the node."""
        return next(name for name, ranks in self.groups.items() if ranks == self.node_ranks[node_id])

    def data_parallel(self, node_id: str) -> int:
        """Return the number of shards that the node's rows are split into."""
        layout = self.settings.layout_of(self.graph.nodes[node_id])
        return len(self.node_ranks[node_id]) // layout.model_parallel

    @property
    def fits(self) -> bool:
        """True if the estimate fits every device's memory, or if that is unknown."""
        limit = self.cluster.device_gib
        return limit is None or max(self.memory) <= limit * 2**30

    def bytes_on(self, rank: int) -> dict[NodeRole, float]:
        """Return the bytes of a worker's models: one per role, at the largest need of the role's nodes."""
        per_role, reference = dict[NodeRole, float](), 0.0
        for node_id, ranks in self.node_ranks.items():
            node = self.graph.nodes[node_id]
            if rank in ranks and node.node_type.is_model:
                role, needed = node.node_role, _bytes_of(node, len(ranks), self.settings)
                per_role[role] = max(needed, per_role.get(role, 0.0))
                if role is NodeRole.ACTOR and node.changes_weights:
                    # The trainer keeps the policy from the start of RL as the reference, even if no node reads it.
                    reference = max(reference, FORWARD_BYTES * self.settings.model_of(node).trained / len(ranks))
        if self.settings.has_adapters and NodeRole.ACTOR in per_role:
            per_role.pop(NodeRole.REFERENCE, None)
        elif reference:
            per_role[NodeRole.REFERENCE] = reference
        return per_role


def plan(graph: TaskGraph, cluster: Cluster, settings: PlanSettings | None = None) -> Plan:
    """Place a graph on a cluster.

    Args:
        graph: Valid graph.
        cluster: Machines to place it on.
        settings: User's choices; by default every node of a chain runs on all of its workers.

    Raises:
        ConfigError: The cluster is too small for the graph's branches or the placement, or a layout does not divide
            its group.
    """
    settings = settings or PlanSettings()
    serial = settings.branches == "serial"
    chains = [single_chain(graph)] if serial else split(graph, max_chains=cluster.num_workers)
    sizes = {chain: _size(chain, graph, settings) for chain in chains}
    counts = _count_workers(sizes, cluster.num_workers, settings.assignment)
    ranks = _assign_ranks(counts, sizes, cluster)
    node_ranks = _node_ranks(graph, ranks, settings)
    for node_id, of_node in node_ranks.items():
        cut = settings.layout_of(graph.nodes[node_id]).model_parallel
        if len(of_node) % cut:
            raise ConfigError(
                f"node {node_id!r}: its {len(of_node)} workers are not a multiple of tensor × pipeline = {cut}"
            )
    return Plan(graph, cluster, settings, ranks, node_ranks)


def _size(chain: Chain, graph: TaskGraph, settings: PlanSettings) -> float:
    """Return the number of parameters in a chain, or of its nodes if none has a model."""
    models = [graph.nodes[node_id] for node_id in chain.nodes if graph.nodes[node_id].node_type.is_model]
    if not models:
        return float(len(chain.nodes))
    return sum(settings.model_of(node).num_params for node in models)


def _count_workers(sizes: Mapping[Chain, float], num_workers: int, assignment: str) -> dict[Chain, int]:
    """Share workers evenly between chains; leftover workers go to the first chains, one each."""
    by_id = sorted(sizes, key=lambda chain: chain.chain_id)
    order = sorted(by_id, key=lambda chain: -sizes[chain]) if assignment == "param_aware" else by_id
    each, left_over = divmod(num_workers, len(order))
    return {chain: each + (position < left_over) for position, chain in enumerate(order)}


def _assign_ranks(counts: Mapping[Chain, int], sizes: Mapping[Chain, float], cluster: Cluster) -> dict[Chain, Ranks]:
    """Assign ranks one by one: a chain stays on its machines while they have room, then takes the emptiest one."""
    per_node = cluster.devices_per_node
    free = [list(range(node * per_node, (node + 1) * per_node)) for node in range(cluster.num_nodes)]
    assigned: dict[Chain, Ranks] = {}
    for chain in sorted(counts, key=lambda chain: (-counts[chain], -sizes[chain], chain.chain_id)):
        taken: list[int] = []
        for _ in range(counts[chain]):
            homes = {rank // per_node for rank in taken}
            _, _, _, node = max(
                (node in homes, len(ranks), -ranks[0], node) for node, ranks in enumerate(free) if ranks
            )
            taken.append(free[node].pop(0))
        assigned[chain] = tuple(sorted(taken))
    return assigned


def _node_ranks(graph: TaskGraph, chains: Mapping[Chain, Ranks], settings: PlanSettings) -> dict[str, Ranks]:
    """Return each node's ranks: its side of the workers of every chain that contains it."""
    found: dict[str, set[int]] = {node_id: set() for node_id in graph.nodes}
    for chain, ranks in chains.items():
        sides = _sides(chain, ranks, graph, settings)
        for node_id in chain.nodes:
            found[node_id].update(sides[_side_of(node_id, chain, graph)])
    return {node_id: tuple(sorted(ranks)) for node_id, ranks in found.items()}


def _side_of(node_id: str, chain: Chain, graph: TaskGraph) -> Side:
    """Return the side of a chain's workers that runs the node; a ``COMPUTE`` node stays where its rows are."""
    for candidate in (node_id, *(name for name in graph.ancestors(node_id) if name in chain.nodes)):
        node = graph.nodes[candidate]
        if node.node_type.is_model:
            return "rollout" if _rolls_out(node) else "train"
        if node.node_type is NodeType.DATA_LOAD:
            break
    return "all"


def _sides(chain: Chain, ranks: Ranks, graph: TaskGraph, settings: PlanSettings) -> dict[Side, Ranks]:
    """Divide a chain's workers into those that roll out and those that train if the chain does both."""
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


def _bytes_of(node: Node, num_ranks: int, settings: PlanSettings) -> float:
    """Return the bytes that a node's model takes on each of its workers."""
    model, cut, role = settings.model_of(node), settings.layout_of(node).model_parallel, node.node_role
    if _rolls_out(node):
        return (settings.rollout_bytes * model.num_params + model.acting_activations) / cut
    if role is NodeRole.CRITIC:  # a critic always trains, in this node or with the policy
        return training_bytes(settings.critic_of(node), num_ranks, cut)
    if node.changes_weights:
        return training_bytes(model, num_ranks, cut)
    return FORWARD_BYTES * model.num_params / num_ranks
