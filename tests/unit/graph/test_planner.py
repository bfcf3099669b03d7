"""The planner: chains, shares, ranks, groups and memory, compared with numbers worked by hand."""

import shutil
from dataclasses import replace
from itertools import combinations
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodyflow.errors import ConfigError
from embodyflow.graph.chains import split
from embodyflow.graph.drawing import to_dot, to_mermaid, to_svg, to_table
from embodyflow.graph.planning.memory_estimate import ModelSize, parse_num_params, training_bytes
from embodyflow.graph.planning.planner import Cluster, Layout, PlanSettings, plan
from embodyflow.graph.planning.process_memory import process_memory
from pipelines import Node, NodeRole, NodeType, TaskGraph, load_pipeline

INFERENCE, TRAIN = NodeType.MODEL_INFERENCE, NodeType.MODEL_TRAIN


def graph_of(edges: str, **nodes: dict) -> TaskGraph:
    """Build a graph from ``"a>b a>c"``; keywords set fields of nodes."""
    parents: dict[str, list[str]] = {}
    for edge in edges.split():
        parent, _, child = edge.partition(">")
        parents.setdefault(parent, [])
        if child:
            parents.setdefault(child, []).append(parent)
    fields = {"executable_ref": "m:f", "node_type": NodeType.COMPUTE}
    made = [Node(node_id=n, dependencies=tuple(deps), **{**fields, **nodes.get(n, {})}) for n, deps in parents.items()]
    return TaskGraph.of(made, "g")


def chains_of(graph: TaskGraph, limit: int = 100) -> set[str]:
    return {"".join(chain.nodes) for chain in split(graph, limit)}


@pytest.mark.parametrize(
    ("edges", "chains"),
    [
        ("a>b b>c", {"abc"}),
        ("a>b a>c b>d c>d", {"abd", "acd"}),
        ("a>b a>c b>d", {"abd", "ac"}),
        ("a>b b>c a>c", {"abc"}),
        ("a>b b>c a>c c>d b>d a>e", {"abcd", "ae"}),
        ("a>c b>c", {"ac", "bc"}),
        ("a>b a>c b>d c>d d>e d>f", {"abde", "abdf", "acde", "acdf"}),
    ],
)
def test_a_graph_splits_into_its_paths(edges, chains):
    assert chains_of(graph_of(edges)) == chains


def test_more_chains_than_workers_fails_early_with_advice():
    layers = " ".join(f"{x}{i}>{y}{i + 1}" for i in range(40) for x in "pq" for y in "pq")  # 2^41 paths
    with pytest.raises(ConfigError, match=r"more chains than the cluster has workers \(8\).*branches=serial"):
        plan(graph_of(layers), Cluster(1, 8))
    serial = plan(graph_of(layers), Cluster(1, 8), PlanSettings(branches="serial"))
    assert set(serial.node_ranks.values()) == {tuple(range(8))}


def split_by_worklist(graph: TaskGraph) -> set[frozenset[str]]:
    """Apply DistFlow's rules literally: split at forks and where branches meet, until nothing splits."""
    graph = without_shortcuts(graph)
    done, waiting = set(), [frozenset(graph.nodes)]
    while waiting:
        nodes = waiting.pop()
        parts = _fan_out(graph, nodes) or _reconverge(graph, nodes)
        if parts:
            waiting.extend(parts)
        else:
            done.add(nodes)
    return done


def without_shortcuts(graph: TaskGraph) -> TaskGraph:
    every = frozenset(graph.nodes)
    kept = []
    for node_id, node in graph.nodes.items():
        above = [p for p in node.dependencies if not _is_shortcut(graph, every, p, node_id)]
        kept.append(node.model_copy(update={"dependencies": tuple(above)}))
    return TaskGraph.of(kept, "g")


def _is_shortcut(graph: TaskGraph, nodes: frozenset[str], start: str, end: str) -> bool:
    return any(end in _reach(graph, nodes, child, "adj") for child in graph.adj[start] if child != end)


def _reach(graph: TaskGraph, nodes: frozenset[str], start: str, edges: str) -> frozenset[str]:
    found, waiting = {start}, [start]
    while waiting:
        new = [n for n in getattr(graph, edges)[waiting.pop()] if n in nodes and n not in found]
        found.update(new)
        waiting.extend(new)
    return frozenset(found)


def _fan_out(graph: TaskGraph, nodes: frozenset[str]) -> list[frozenset[str]]:
    for fork in sorted(nodes):
        below = [_reach(graph, nodes, child, "adj") for child in graph.adj[fork] if child in nodes]
        if len(below) >= 2 and not any(a & b for a, b in combinations(below, 2)):
            above = _reach(graph, nodes, fork, "rev_adj")
            return [above | part for part in below]
    return []


def _reconverge(graph: TaskGraph, nodes: frozenset[str]) -> list[frozenset[str]]:
    roots = [n for n in sorted(nodes) if not set(graph.rev_adj[n]) & nodes]
    paths, waiting = [], [[root] for root in roots]
    while waiting:
        path = waiting.pop()
        children = [n for n in graph.adj[path[-1]] if n in nodes]
        if not children:
            paths.append(path)
        waiting.extend([*path, child] for child in children)
    for first, second in combinations(paths, 2):
        shared = 0
        while shared < min(len(first), len(second)) and first[-1 - shared] == second[-1 - shared]:
            shared += 1
        if shared:
            merge = first[-shared]
            below = _reach(graph, nodes, merge, "adj")
            prefixes = {tuple(p[: p.index(merge)]) for p in paths if merge in p}
            return [frozenset(prefix) | below for prefix in prefixes]
    return []


@st.composite
def dags(draw: st.DrawFn) -> TaskGraph:
    size = draw(st.integers(2, 7))
    edges = [f"{chr(97 + i)}" for i in range(size)]
    for child in range(1, size):
        for parent in draw(st.lists(st.integers(0, child - 1), unique=True, max_size=2)):
            edges.append(f"{chr(97 + parent)}>{chr(97 + child)}")
    return graph_of(" ".join(edges))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(dags())
def test_distflow_s_rules_give_these_paths_and_lose_no_node(graph):
    paths = {frozenset(chain.nodes) for chain in split(graph, 1000)}
    assert frozenset().union(*paths) == set(graph.nodes)
    left = {part for part in split_by_worklist(graph) if len(_leaves(graph, part)) == 1}
    assert left <= paths


def _leaves(graph: TaskGraph, nodes: frozenset[str]) -> list[str]:
    return [n for n in nodes if not set(graph.adj[n]) & nodes]


@pytest.mark.parametrize("edges", ["a>b a>c b>d c>d", "a>b a>c b>d b>e c>f", "a>c b>c c>d c>e", "a>b b>c"])
def test_connected_graphs_split_like_distflow(edges):
    graph = graph_of(edges)
    assert {frozenset(chain.nodes) for chain in split(graph, 100)} == split_by_worklist(graph)


def model(params: str, node_type: NodeType = TRAIN) -> dict:
    return {"node_type": node_type, "node_role": NodeRole.ACTOR, "config": {"model_params": params}}


@pytest.mark.parametrize(
    ("assignment", "shares"),
    [
        ("param_aware", {"g_split_0": 2, "g_split_1": 3, "g_split_2": 3}),
        ("even", {"g_split_0": 3, "g_split_1": 3, "g_split_2": 2}),
    ],
)
def test_leftover_workers_go_to_the_largest_or_the_first_chains(assignment, shares):
    graph = graph_of("r>a r>b r>c", a=model("1B"), b=model("7B"), c=model("3B"))
    planned = plan(graph, Cluster(1, 8), PlanSettings(assignment=assignment))
    assert {chain.chain_id: len(ranks) for chain, ranks in planned.chains.items()} == shares
    assert sorted(rank for ranks in planned.chains.values() for rank in ranks) == list(range(8))


def test_chains_stay_on_one_machine_and_machines_fill_evenly():
    graph = graph_of("r>a r>b", a=model("7B"), b=model("1B"))
    planned = plan(graph, Cluster(num_nodes=2, cpus_per_node=64, gpus_per_node=4))
    assert {chain.nodes[-1]: ranks for chain, ranks in planned.chains.items()} == {
        "a": (0, 1, 2, 3),
        "b": (4, 5, 6, 7),
    }


def test_a_shared_node_runs_on_the_union_and_equal_ranks_share_a_group():
    graph = graph_of("r>a r>b a>t b>t", r={"node_type": INFERENCE}, t={"node_type": TRAIN})
    planned = plan(graph, Cluster(1, 4))
    assert planned.node_ranks == {"r": (0, 1, 2, 3), "a": (0, 1), "b": (2, 3), "t": (0, 1, 2, 3)}
    assert planned.groups == {
        "process_group_1": (0, 1),
        "process_group_2": (0, 1, 2, 3),
        "process_group_3": (2, 3),
    }
    assert planned.group_of("r") == planned.group_of("t") == "process_group_2"


@pytest.mark.parametrize(
    ("placement", "rollout", "trainer"),
    [
        ("colocated", (0, 1, 2, 3, 4, 5, 6, 7), (0, 1, 2, 3, 4, 5, 6, 7)),
        ("disaggregated", (0, 1, 2, 3, 4, 5), (6, 7)),
        ("hybrid", (0, 1, 2, 3, 4, 5, 6, 7), (6, 7)),
    ],
)
def test_placement_of_embodied_grpo(placement, rollout, trainer):
    graph = load_pipeline("embodied_grpo")
    planned = plan(graph, Cluster(1, 8), PlanSettings(placement=placement, train_share=0.25))
    side = dict.fromkeys(["rollout", "sampling", "reward", "advantage"], rollout)
    side |= dict.fromkeys(["old_log_prob", "ref_log_prob", "train_actor"], trainer)
    assert planned.node_ranks == side


def test_disaggregated_on_one_worker_is_refused():
    with pytest.raises(ConfigError, match=r"placement=disaggregated: .* needs at least 2"):
        plan(load_pipeline("grpo"), Cluster(1, 1), PlanSettings(placement="disaggregated"))


def test_ranks_within_a_group():
    layout = Layout(tensor=2, pipeline=3)
    assert [layout.coordinates(i) for i in (0, 1, 2, 5, 6, 13)] == [
        (0, 0, 0),
        (0, 0, 1),
        (0, 1, 0),
        (0, 2, 1),
        (1, 0, 0),
        (2, 0, 1),
    ]


def test_a_group_that_the_layout_does_not_divide_is_refused():
    with pytest.raises(ConfigError, match="'rollout': its 6 workers are not a multiple of tensor × pipeline = 4"):
        plan(load_pipeline("grpo"), Cluster(1, 6), PlanSettings(rollout_layout=Layout(tensor=4)))


def test_memory_of_a_7b_model_by_hand():
    size = ModelSize(7e9, training_activations=4e9)
    settings = PlanSettings(placement="disaggregated", model=size, rollout_layout=Layout(tensor=2), rollout_bytes=2)
    planned = plan(load_pipeline("grpo"), Cluster(1, 16, 8, device_gib=24), settings)
    rollout = 2 * 7e9 / 2
    trained = 16 * 7e9 / 4 + 4e9
    reference = 4 * 7e9 / 4
    assert planned.memory == pytest.approx([rollout] * 4 + [trained + reference] * 4)
    assert not planned.fits and "Does not fit: a device has 24 GiB." in to_table(planned)
    assert plan(load_pipeline("grpo"), Cluster(1, 16, 8, device_gib=37), settings).fits
    in_float32 = plan(load_pipeline("grpo"), Cluster(1, 16, 8), replace(settings, rollout_bytes=4))
    assert in_float32.memory[0] == 2 * rollout


def test_with_adapters_a_policy_needs_only_its_weights_and_a_critic_its_full_training_memory():
    size, activations = ModelSize(7e9, num_trained=0, training_activations=4e9), 4e9
    settings = PlanSettings(placement="disaggregated", model=size, has_adapters=True)
    [*_, trainer] = plan(load_pipeline("grpo"), Cluster(1, 16, 8), settings).memory
    assert trainer == pytest.approx(4 * 7e9 / 4 + activations), "the reference is the policy without adapters"
    [*_, with_critic] = plan(load_pipeline("ppo"), Cluster(1, 16, 8), settings).memory
    assert with_critic == pytest.approx(trainer + 16 * 7e9 / 4 + activations)


def test_a_critic_trained_with_the_policy_and_an_unread_reference_need_memory():
    settings = PlanSettings(placement="disaggregated", model=ModelSize(1e9), rollout_bytes=4)
    planned = plan(load_pipeline("ppo_control"), Cluster(1, 3, 3), settings)
    assert planned.graph.nodes["value"].only_forward_compute
    [*_, trainer] = planned.memory
    trainers = planned.memory.count(trainer)
    assert trainer == pytest.approx((16 + 16 + 4) * 1e9 / trainers)


def test_a_reference_without_a_policy_needs_memory_even_with_adapters():
    node = {"node_type": TRAIN, "node_role": NodeRole.REFERENCE, "config": {"model_params": "1B"}}
    settings = PlanSettings(has_adapters=True, model=ModelSize(2e9, num_trained=0))
    assert plan(graph_of("a", a=node), Cluster(1, 2), settings).memory == [2e9, 2e9]


def test_a_reference_needs_no_memory_for_training():
    node = {"node_type": TRAIN, "node_role": NodeRole.REFERENCE, "config": {"model_params": "1B"}}
    assert plan(graph_of("a", a=node), Cluster(1, 2)).memory == [2e9, 2e9]


def test_tensor_parallel_ranks_share_activations():
    size = ModelSize(0, training_activations=60)
    assert training_bytes(size, num_ranks=4, model_parallel=2) == 60 / 2


def test_frozen_weights_take_4_bytes_and_the_reference_copies_only_trained_ones():
    size = ModelSize(450e6, num_trained=100e6, training_activations=3e8, acting_activations=4e8)
    settings = PlanSettings(placement="disaggregated", model=size)
    planned = plan(load_pipeline("grpo"), Cluster(1, 2), settings)
    rollout, trainer = planned.memory
    assert rollout == 4 * 450e6 + 4e8
    assert trainer == 4 * 350e6 + 16 * 100e6 + 3e8 + 4 * 100e6
    processes = process_memory(planned)
    assert processes.rollout == pytest.approx(0.4 * 2**30 + rollout)
    assert processes.trainer == pytest.approx(0.4 * 2**30 + trainer + 4 * 100e6)
    assert processes.shared == 4 * 350e6 + 2 * 4 * 100e6, "frozen weights are published once"
    assert process_memory(replace(planned, settings=replace(settings, has_adapters=True))).shared == 2 * 4 * 450e6


def test_one_of_several_ranks_gathers_all_weights_for_the_export():
    size = ModelSize(450e6, num_trained=100e6, training_activations=3e8)
    planned = plan(load_pipeline("grpo"), Cluster(1, 4), PlanSettings(placement="disaggregated", model=size))
    trainer = planned.memory[-1]
    aside, gathered = 4 * 100e6 / 2, 4 * 450e6 - 3e8
    assert process_memory(planned).trainer == pytest.approx(0.4 * 2**30 + trainer + aside + gathered)


def test_a_critic_has_a_size_of_its_own():
    settings = PlanSettings(model=ModelSize(1e9, num_trained=0), critic=ModelSize(2e9, num_trained=1e8))
    node = {"node_type": TRAIN, "node_role": NodeRole.CRITIC}
    assert plan(graph_of("a", a=node), Cluster(1, 1), settings).memory == [4 * 2e9 + 12 * 1e8]


def test_another_number_of_parameters_keeps_the_share_that_is_trained():
    assert ModelSize(450, num_trained=90).resized(1000) == ModelSize(1000, num_trained=200)
    assert ModelSize().resized(1000).trained == 1000


@pytest.mark.parametrize(
    ("text", "number"), [("7B", 7e9), ("350m", 3.5e8), ("1.5e9", 1.5e9), (1000, 1e3), ("0.5 T", 5e11)]
)
def test_model_params_with_suffixes(text, number):
    assert parse_num_params(text, "node 'a'") == number


def test_invalid_model_params_name_the_node():
    graph = graph_of("a>b", a=model("huge"))
    with pytest.raises(ConfigError, match="node 'a': model_params='huge': must be a number above 0"):
        plan(graph, Cluster(1, 2))


@pytest.mark.parametrize("sizes", [(0, 1, 0), (1, 0, 0), (1, 1, -1)])
def test_an_impossible_cluster_is_refused(sizes):
    with pytest.raises(ConfigError, match="cluster: num_nodes and cpus_per_node must be at least 1"):
        Cluster(*sizes)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(dags(), st.integers(1, 3), st.integers(1, 8), st.sampled_from(["param_aware", "even"]))
def test_every_worker_has_one_chain_and_every_node_a_worker(graph, machines, cores, assignment):
    cluster = Cluster(machines, cores)
    num_chains = len(split(graph, 1000))
    settings = PlanSettings(assignment=assignment)
    if num_chains > cluster.num_workers:
        with pytest.raises(ConfigError, match="more chains"):
            plan(graph, cluster, settings)
        return
    planned = plan(graph, cluster, settings)
    assigned = [rank for ranks in planned.chains.values() for rank in ranks]
    assert sorted(assigned) == list(range(cluster.num_workers)) and len(planned.chains) == num_chains
    shares = [len(ranks) for ranks in planned.chains.values()]
    assert max(shares) - min(shares) <= 1
    assert all(planned.node_ranks[node_id] for node_id in graph.nodes)


def test_the_table_shows_every_node_and_every_worker():
    graph = load_pipeline("embodied_grpo")
    table = to_table(plan(graph, Cluster(2, 4), PlanSettings(placement="hybrid")))
    rows = [line.split() for line in table.splitlines()]
    assert rows[0] == ["node", "type", "role", "group", "ranks", "dp×pp×tp"]
    assert rows[1] == ["rollout", "MODEL_INFERENCE", "ROLLOUT", "process_group_1", "0-7", "8×1×1"]
    assert rows[7] == ["train_actor", "MODEL_TRAIN", "ACTOR", "process_group_2", "4-7", "4×1×1"]
    assert rows[9:] == [
        ["ranks", "machine", "chain", "memory", "GiB"],
        ["0-3", "0", "embodied_grpo", "0.00"],
        ["4-7", "1", "embodied_grpo", "0.00"],
    ]


def test_mermaid_has_every_node_and_edge():
    graph = graph_of("a>b a>c", a={"node_type": INFERENCE})
    assert to_mermaid(graph) == (
        'flowchart LR\n  n0["a<br/>m:f"]\n  n1(["b<br/>m:f"])\n  n2(["c<br/>m:f"])\n  n0 --> n1\n  n0 --> n2\n'
    )
    assert 'n1(["b<br/>m:f<br/>ranks 0-1"])' in to_mermaid(graph, plan(graph, Cluster(1, 4)))


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_svg_draws_every_node_and_edge():
    graph = load_pipeline("embodied_grpo")
    picture = ElementTree.fromstring(to_svg(graph, plan(graph, Cluster(1, 2))))
    classes = [element.get("class") for element in picture.iter("{http://www.w3.org/2000/svg}g")]
    titles = {element.text for element in picture.iter("{http://www.w3.org/2000/svg}title")}
    assert classes.count("node") == 7 and classes.count("edge") == 6
    assert set(graph.nodes) <= titles and "rollout->sampling" in titles


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_the_legend_explains_the_shapes_below_all_lines():
    graph = load_pipeline("embodied_grpo")
    texts = list(ElementTree.fromstring(to_svg(graph)).iter("{http://www.w3.org/2000/svg}text"))
    [legend] = [each for each in texts if each.text and "ellipse" in each.text]
    assert "3-D box: a model of the trainer" in str(legend.text) and "cylinder" not in str(legend.text)
    assert all(float(legend.get("y")) > float(each.get("y")) + 10 for each in texts if each is not legend)


def test_svg_without_graphviz_names_the_package(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="SVG needs Graphviz"):
        to_svg(load_pipeline("embodied_grpo"))


def test_dot_quotes_names_and_labels():
    assert '"a" [shape=ellipse, label="a\\nm:f"];' in to_dot(graph_of("a"))
