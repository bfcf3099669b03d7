"""Graphs written in Python: the API, references, declared columns and the JSON round trip."""

import json
import sys
import types
from itertools import pairwise

import pytest

from embodyflow.errors import ConfigError
from embodyflow.nodes.declarations import node
from embodyflow.references import reference_to, resolve
from pipelines import BUILT_IN, GraphError, Node, NodeRole, NodeType, Pipeline, TaskGraph, load_pipeline


def source(batch, config=None, **kwargs):
    """Do nothing and declare no columns."""


@node(reads=(), writes=("rewards",))
def writes_rewards(batch, config=None, **kwargs):
    """Declare that it writes rewards."""


@node(reads=("rewards",), writes=("advantages",))
def reads_rewards(batch, config=None, **kwargs):
    """Declare that it reads rewards."""


@node(reads=(), writes=(), config=("scale",))
def declares_keys(batch, config=None, **kwargs):
    """Declare the keys that it reads."""


def takes_too_little(batch):
    """Take too few arguments for a node function."""


class Functions:
    @staticmethod
    def static(batch, config=None, **kwargs):
        """Do nothing."""

    def method(self, batch, config=None, **kwargs):
        """Need an instance, which workers do not have."""


HERE = __name__


def diamond() -> Pipeline:
    return (
        Pipeline("diamond", "two branches")
        .add_node("top", func=source, node_type=NodeType.DATA_LOAD)
        .add_node("left", func=source, deps=["top"])
        .add_node("right", func=f"{HERE}:source", deps=["top"], config={"scale": 2.0}, retries=3)
        .add_node("bottom", func=Functions.static, deps=["left", "right"])
    )


def messages(pipeline: Pipeline) -> list[str]:
    with pytest.raises(GraphError) as caught:
        pipeline.build()
    return [str(problem) for problem in caught.value.problems]


def test_diamond_has_all_edges_and_an_order_that_respects_them():
    graph = diamond().build()
    assert graph.adj == {"top": ["left", "right"], "left": ["bottom"], "right": ["bottom"], "bottom": []}
    assert graph.rev_adj == {"top": [], "left": ["top"], "right": ["top"], "bottom": ["left", "right"]}
    order = graph.get_execution_order()
    assert order[0] == "top" and order[-1] == "bottom" and sorted(order[1:3]) == ["left", "right"]
    assert graph.ancestors("bottom") == ["left", "right", "top"]
    assert graph.validate_graph() == (True, "")


def test_callables_and_strings_name_the_same_function():
    graph = diamond().build()
    assert graph.nodes["left"].executable_ref == graph.nodes["right"].executable_ref == f"{HERE}:source"
    assert graph.nodes["bottom"].executable_ref == f"{HERE}:Functions.static"


@pytest.mark.parametrize(
    ("dotted", "reference"),
    [
        ("os.path.join", "os:path.join"),
        ("json.dumps", "json:dumps"),
        ("json.decoder.JSONDecoder.decode", "json.decoder:JSONDecoder.decode"),
    ],
)
def test_dotted_references_find_where_the_module_ends(dotted, reference):
    assert reference_to(dotted) == reference
    assert callable(resolve(reference))


def make_local():
    def local(batch, config=None, **kwargs):
        """Exist only inside this function."""

    return local


def in_script(batch, config=None, **kwargs):
    """Seem to be defined in the started script."""


in_script.__module__ = "__main__"


@pytest.mark.parametrize(
    ("func", "reason"),
    [
        (lambda batch, config=None, **kwargs: None, "is a lambda"),
        (make_local(), "inside another function"),
        (in_script, "the script that was started"),
        (types.SimpleNamespace(), "should be a valid string"),
        ("no_such_module:f", "cannot import module 'no_such_module'"),
        (f"{HERE}:no_such_function", "has no attribute 'no_such_function'"),
        (f"{HERE}:HERE", "is not callable"),
        (f"{HERE}:Functions.method", "a method of an instance"),
        (takes_too_little, "must accept (batch, config=None, **kwargs)"),
        ("nothing", "names no module"),
        ("two:colons:here", "cannot import module 'two'"),
    ],
)
def test_a_function_that_workers_cannot_call_is_refused_with_the_reason(func, reason):
    [message] = messages(Pipeline("p").add_node("good", func=source).add_node("culprit", func=func))
    assert message.startswith("node 'culprit': executable_ref") and reason in message


def test_a_function_whose_name_refers_to_another_object_is_refused(monkeypatch):
    original = source
    monkeypatch.setattr(sys.modules[HERE], "source", writes_rewards)
    with pytest.raises(ValueError, match="names another object"):
        reference_to(original)


def test_a_module_that_fails_to_import_is_reported_with_its_error(tmp_path, monkeypatch):
    (tmp_path / "broken_nodes.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    [message] = messages(Pipeline("p").add_node("culprit", func="broken_nodes:f"))
    assert "node 'culprit'" in message and "ZeroDivisionError: division by zero" in message


def test_a_duplicate_id_is_refused_at_once():
    pipeline = Pipeline("p").add_node("a", func=source)
    with pytest.raises(GraphError, match="node 'a': node_id: duplicate"):
        pipeline.add_node("a", func=source)
    graph = pipeline.build()
    with pytest.raises(GraphError, match="node 'a'"):
        graph.add_node(graph.nodes["a"])


def test_one_report_holds_every_problem():
    pipeline = (
        Pipeline("p")
        .add_node("a", func="no_such_module.f", deps=["b"], node_type="MODEL_TRAINING", retries=-1)
        .add_node("b", func=source, deps=["a", "ghost"], node_role="JUDGE", config=[1])
        .add_node("c", func=source, node_type="data_load", node_role="ACTOR", timeout_seconds=0)
    )
    found = messages(pipeline)
    for expected in (
        "node 'a': executable_ref='no_such_module.f': cannot import module 'no_such_module'",
        "node 'a': node_type='MODEL_TRAINING': should be 'COMPUTE', 'DATA_LOAD'",
        "node 'a': retries=-1: should be greater than or equal to 0",
        "node 'b': node_role='JUDGE': should be",
        "node 'b': config=[1]: should be a valid dictionary",
        "node 'b': dependencies: no node 'ghost'; allowed are a, c",
        "node 'c': node_role='ACTOR': is not allowed with node_type=DATA_LOAD; allowed is DEFAULT",
        "node 'c': timeout_seconds=0: should be greater than 0",
    ):
        assert any(message.startswith(expected) for message in found), (expected, found)
    assert any("dependencies: cycle" in message and "a → b" in message for message in found)
    assert len(found) == 9


def test_a_node_that_trains_allows_no_retries():
    def graph(node_type: str, only_forward_compute: bool) -> Pipeline:
        return Pipeline("p").add_node(
            "a", func=source, node_type=node_type, only_forward_compute=only_forward_compute, retries=2
        )

    assert messages(graph("MODEL_TRAIN", False)) == [
        "node 'a': retries=2: must be 0 for a node that trains; recovery resumes from the last commit"
    ]
    assert graph("MODEL_TRAIN", True).build().nodes["a"].retries == 2
    assert graph("MODEL_INFERENCE", False).build().nodes["a"].retries == 2


def test_two_separate_cycles_are_both_reported():
    pipeline = Pipeline("p").add_node("a", func=source, deps=["a"])
    pipeline.add_node("x", func=source, deps=["z"]).add_node("y", func=source, deps=["x"])
    found = messages(pipeline.add_node("z", func=source, deps=["y"]))
    assert found[0] == "node 'a': dependencies: cycle a → a"
    printed = found[1].rpartition("cycle ")[2].split(" → ")
    assert printed[0] == printed[-1] and "".join(printed[:-1]) in {"xyz", "yzx", "zxy"}


def test_a_column_that_no_ancestor_writes_is_refused_with_its_writer_named():
    pipeline = Pipeline("p").add_node("start", func=source, writes=["uid"])
    pipeline.add_node("reward", func=writes_rewards, deps=["start"])
    pipeline.add_node("advantage", func=reads_rewards, deps=["start"])
    assert messages(pipeline) == ["node 'advantage': reads 'rewards', which no ancestor writes; written by reward"]


def test_columns_come_from_any_ancestor_and_from_a_node_s_own_declaration():
    pipeline = Pipeline("p").add_node("reward", func=writes_rewards)
    pipeline.add_node("between", func=source, deps=["reward"], reads=["rewards"], writes=[])
    pipeline.add_node("advantage", func=reads_rewards, deps=["between"]).build()
    own = Pipeline("p").add_node("other", func=source, writes=("rewards",))
    own.add_node("advantage", func=reads_rewards, deps=["other"]).build()


def test_an_ancestor_that_declares_nothing_may_write_anything():
    Pipeline("p").add_node("any", func=source).add_node("advantage", func=reads_rewards, deps=["any"]).build()


def test_a_declaration_without_a_comma_is_refused():
    with pytest.raises(TypeError, match="reads must be a tuple"):
        node(reads=("rewards"), writes=())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("func", "config", "expected"),
    [
        ("tasks:filter_groups", {"unifrom": "scores"}, "config.unifrom: unknown key; allowed are uniform"),
        ("tasks.sampling.filter_groups", {"unifrom": "scores"}, "config.unifrom: unknown key; allowed are uniform"),
        ("tasks:compute_reward", {"scale": 2}, "config.scale: unknown key; tasks:compute_reward reads none"),
        ("tasks:generate", {"rollout.n": 16}, "config.rollout.n: unknown key; allowed are model_params"),
        ("tasks:filter_groups", {"uniform": 5}, "config.uniform=5: must be the name of a column"),
        ("tasks:filter_groups", {"uniform": ""}, "config.uniform='': must be the name of a column"),
        ("tasks:generate", {"model_params": "big"}, "config.model_params='big': must be a number above 0"),
        ("tasks:generate", {"model_params": "0B"}, "config.model_params='0B': must be a number above 0"),
        ("tasks:generate", {"model_params": "1e400"}, "config.model_params='1e400': must be a number above 0"),
        (declares_keys, {"scale": 1, "scael": 2}, "config.scael: unknown key; allowed are scale"),
    ],
)
def test_a_key_that_no_one_reads_and_a_value_of_another_kind_are_refused(func, config, expected):
    [message] = messages(Pipeline("p").add_node("a", source).add_node("culprit", func, ["a"], config))
    assert message.startswith(f"node 'culprit': {expected}")


def test_a_function_of_the_user_s_reads_any_key_and_a_changed_one_of_tasks_those_it_declares(monkeypatch):
    assert Pipeline("p").add_node("a", source, config={"any": [1]}).build().nodes["a"].config == {"any": [1]}
    changed = Pipeline("p").add_node("a", "tasks:compute_reward", config={"scale": 2}, reads=())
    assert len(messages(changed)) == 1
    monkeypatch.setitem(vars(resolve("tasks:compute_reward")), "__config__", ("scale",))
    assert changed.build().nodes["a"].config == {"scale": 2}


def test_the_column_that_a_key_names_must_be_written_by_an_ancestor():
    def graph(column: str) -> Pipeline:
        start = Pipeline("p").add_node("a", source, writes=["success", "truncated", "group_id", "scores"])
        return start.add_node("culprit", "tasks:filter_groups", ["a"], {"uniform": column})

    assert graph("scores").build()
    assert messages(graph("scoers")) == ["node 'culprit': reads 'scoers', which no ancestor writes"]


def test_a_built_in_pipeline_that_a_project_changed_is_checked_for_keys_too(monkeypatch):
    def changed() -> TaskGraph:
        return Pipeline("grpo").add_node("reward", "tasks:compute_reward", config={"scale": 2}).build()

    monkeypatch.setitem(BUILT_IN, "grpo", f"{HERE}:changed")
    monkeypatch.setattr(sys.modules[HERE], "changed", changed, raising=False)
    with pytest.raises(GraphError, match=r"node 'reward': config\.scale: unknown key"):
        load_pipeline("grpo")


@pytest.mark.parametrize("value", [float("nan"), object(), {1: 2}, {"deep": [float("inf")]}])
def test_config_holds_only_json(value):
    [message] = messages(Pipeline("p").add_node("culprit", func=source, config={"key": value}))
    assert message.startswith("node 'culprit': config.key")


def test_a_long_value_is_shortened_in_the_report():
    [message] = messages(Pipeline("p").add_node("culprit", func=source, config=list(range(10**6))))
    assert len(message) < 200


def test_round_trip_through_json_keeps_the_graph():
    graph = diamond().build()
    again = TaskGraph.from_dict(json.loads(json.dumps(graph.to_dict())))
    assert again.nodes == graph.nodes and again.adj == graph.adj and again.digest == graph.digest
    assert (again.graph_id, again.description) == ("diamond", "two branches")
    assert again.nodes["right"].config == {"scale": 2.0} and again.nodes["right"].retries == 3


def test_from_dict_refuses_invalid_graphs_and_imports_no_functions():
    data = diamond().build().to_dict()
    data["nodes"][0]["executable_ref"] = "module_of_another_machine:f"
    assert TaskGraph.from_dict(data).nodes["top"].executable_ref == "module_of_another_machine:f"
    data["nodes"][0]["dependencies"] = ["bottom"]
    with pytest.raises(GraphError, match="cycle"):
        TaskGraph.from_dict(data)


def test_the_digest_ignores_names_and_order_and_depends_on_everything_else():
    graph = diamond().build()
    nodes = list(graph.nodes.values())
    assert TaskGraph.of(reversed(nodes), "other").digest == graph.digest
    changed = [nodes[0].model_copy(update={"retries": 1}), *nodes[1:]]
    assert TaskGraph.of(changed, "diamond").digest != graph.digest


def test_a_graph_built_node_by_node_is_validated():
    graph = TaskGraph("mine")
    graph.add_node(Node(node_id="b", executable_ref=f"{HERE}:source", node_type="compute", dependencies=("a",)))
    assert graph.validate_graph() == (False, "node 'b': dependencies: no node 'a'; the graph has no other node")
    graph.add_node(Node(node_id="a", executable_ref=f"{HERE}:nothing", node_type=NodeType.COMPUTE))
    ok, message = graph.validate_graph()
    assert not ok and message.startswith(f"node 'a': executable_ref='{HERE}:nothing'")


def test_unknown_functions_do_not_hide_unwritten_columns():
    pipeline = Pipeline("p").add_node("a", func="nowhere:f", writes=["x"])
    found = messages(pipeline.add_node("b", func="nowhere:g", deps=["a"], reads=["y"]))
    assert [line.partition(" in ")[0].split(": ")[:2] for line in found] == [
        ["node 'a'", "executable_ref='nowhere:f'"],
        ["node 'b'", "executable_ref='nowhere:g'"],
        ["node 'b'", "reads 'y', which no ancestor writes"],
    ]


def test_a_custom_graph_is_checked_after_a_built_in_one_was_not():
    load_pipeline("grpo")
    [line] = messages(Pipeline("p").add_node("a", func="tasks:nothing"))
    assert line.startswith("node 'a': executable_ref='tasks:nothing'")


def test_an_empty_pipeline_is_refused():
    assert messages(Pipeline("p")) == ["nodes: must not be empty"]


CHAINS = {
    "grpo": "rollout reward advantage old_log_prob ref_log_prob train_actor",
    "ppo": "rollout reward value advantage old_log_prob ref_log_prob train_actor train_critic",
    "grpo_kl_reward": "rollout reward sampling old_log_prob ref_log_prob kl_penalty advantage train_actor",
    "ppo_joint": "rollout reward value advantage old_log_prob ref_log_prob train_actor_critic",
    "ppo_kl_reward": ("rollout reward value old_log_prob ref_log_prob kl_penalty advantage train_actor train_critic"),
    "remax": "rollout baseline reward sampling advantage old_log_prob ref_log_prob train_actor",
    "rae": "rollout reward agent_baseline advantage old_log_prob ref_log_prob train_actor",
    "ppo_control": "rollout value advantage decisions old_log_prob train_actor_critic",
    "sac": "rollout store train",
    "embodied_sac": "rollout store train",
    "offline": "train",
    "dagger": "rollout store train",
    "dapo": "rollout reward dynamic_sampling advantage old_log_prob ref_log_prob train_actor",
    "language_grpo": "rollout reward sampling advantage old_log_prob ref_log_prob train_actor",
    "embodied_dapo": "rollout dynamic_sampling reward advantage old_log_prob ref_log_prob train_actor",
    "embodied_grpo": "rollout sampling reward advantage old_log_prob ref_log_prob train_actor",
    "embodied_srpo": "rollout progress reward sampling advantage old_log_prob ref_log_prob train_actor",
    "embodied_classifier": "rollout classifier reward advantage old_log_prob ref_log_prob train_actor",
}


def test_every_built_in_pipeline_is_tested():
    assert sorted(CHAINS) == sorted(BUILT_IN)


@pytest.mark.parametrize("name", CHAINS)
def test_built_in_pipelines_are_the_documented_chains(name):
    graph = load_pipeline(name)
    chain = CHAINS[name].split()
    assert graph.get_execution_order() == chain
    assert graph.validate_graph() == (True, ""), "runs do not check the functions of built-in graphs"
    # Rows come from rollout, only scores from these.
    also = {("embodied_srpo", "reward"): ("rollout",), ("embodied_classifier", "reward"): ("rollout",)}
    assert [graph.nodes[b].dependencies for b in chain[1:]] == [
        (*also.get((name, b), ()), a) for a, b in pairwise(chain)
    ]
    trains = [n for n in graph.nodes.values() if n.node_type is NodeType.MODEL_TRAIN and not n.only_forward_compute]
    assert [n.node_id for n in trains] == [node_id for node_id in chain if node_id.startswith(("train", "store"))]
    assert name == "offline" or graph.nodes["rollout"].node_role is NodeRole.ROLLOUT
    assert graph.graph_id == name


def write_outside_module(folder, monkeypatch):
    (folder / "their_nodes.py").write_text(
        "from pipelines import Pipeline, TaskGraph, NodeType, NodeRole\n"
        "from embodyflow.types import NodeOutput\n\n"
        "def twice(batch, config=None, **kwargs) -> NodeOutput:\n"
        "    return NodeOutput(batch=batch, metrics={'n': 1.0})\n\n"
        "def my_pipeline() -> TaskGraph:\n"
        "    pipeline = Pipeline('my_pipeline', 'My workflow')\n"
        "    pipeline.add_node('rollout_actor', func='tasks:generate', deps=[],\n"
        "        node_type=NodeType.MODEL_INFERENCE, node_role=NodeRole.ROLLOUT\n"
        "    ).add_node('my_custom_node', func='their_nodes:twice', deps=['rollout_actor'],\n"
        "        node_type=NodeType.COMPUTE, node_role=NodeRole.DEFAULT)\n"
        "    return pipeline.build()\n\n"
        "def forgot_build():\n"
        "    return Pipeline('p')\n\n"
        "def has_a_bug(size=0):\n"
        "    return 1 // size\n"
    )
    monkeypatch.syspath_prepend(folder)


def test_a_pipeline_from_outside_the_repository_loads(tmp_path, monkeypatch):
    write_outside_module(tmp_path, monkeypatch)
    graph = load_pipeline(custom_fn="their_nodes:my_pipeline")
    assert graph.graph_id == "my_pipeline" and graph.get_execution_order() == [
        "rollout_actor",
        "my_custom_node",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "gppo"}, "pipeline.name=gppo: allowed are grpo, ppo"),
        ({"custom_fn": "their_nodes:forgot_build"}, "must return a TaskGraph"),
        ({"custom_fn": "their_nodes:has_a_bug"}, "ZeroDivisionError: integer division or modulo by zero, at /"),
        ({"custom_fn": "their_nodes:twice"}, "their_nodes:twice: TypeError: twice() missing 1 required positional"),
        ({"custom_fn": "their_nodes:__name__"}, "their_nodes:__name__: TypeError: 'str' object is not callable"),
        ({"custom_fn": "nowhere:f"}, "pipeline.custom_fn=nowhere:f: cannot import module"),
        ({"yaml": "missing.yaml"}, "missing.yaml: cannot be read"),
        ({}, "exactly one of name, custom_fn and yaml"),
        ({"name": "grpo", "yaml": "x.yaml"}, "exactly one of name, custom_fn and yaml"),
    ],
)
def test_a_pipeline_that_cannot_be_loaded_is_reported_in_one_line(arguments, message, tmp_path, monkeypatch):
    write_outside_module(tmp_path, monkeypatch)
    with pytest.raises(ConfigError) as caught:
        load_pipeline(**arguments)
    assert message in str(caught.value) and "\n" not in str(caught.value)
