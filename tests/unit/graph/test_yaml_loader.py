"""Graphs written in YAML: the same graph as in Python, `!Ref`, the schema and refusals."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from embodyflow.errors import ConfigError
from embodyflow.graph.schema import SCHEMA_FILE, schema_text
from embodyflow.graph.yaml_loader import load_yaml
from pipelines import GraphError, load_pipeline

GRPO = """
dag_id: my_grpo
description: GRPO without a line of Python
nodes:
  - {node_id: rollout, node_type: MODEL_INFERENCE, node_role: ROLLOUT, executable_ref: "tasks:generate"}
  - node_id: train_actor        # order in the file does not matter
    node_type: model_train
    node_role: actor
    dependencies: [ref_log_prob]
    executable_ref: tasks:train_actor
  - node_id: reward
    node_type: COMPUTE
    node_role: REWARD
    dependencies: [rollout]
    executable_ref: tasks.compute_reward
  - node_id: advantage
    node_type: COMPUTE
    node_role: ADVANTAGE
    dependencies: [reward]
    executable_ref: tasks:compute_advantage
  - node_id: old_log_prob
    node_type: MODEL_TRAIN
    node_role: ACTOR
    only_forward_compute: true
    dependencies: [advantage]
    executable_ref: tasks:compute_old_log_prob
  - node_id: ref_log_prob
    node_type: MODEL_TRAIN
    node_role: REFERENCE
    only_forward_compute: true
    dependencies: [old_log_prob]
    executable_ref: tasks:compute_ref_log_prob
"""

WITH_REFS = """
dag_id: refs
global_config:
  model: {size: 7B, layers: [1, 2]}
  patience: 2
  sizes: {7: large}
  nested: {deeper: [!Ref global_config.patience]}
nodes:
  - node_id: rollout
    node_type: MODEL_INFERENCE
    executable_ref: HERE:any_node
    retries: !Ref global_config.patience
    config:
      whole: !Ref global_config.model
      deep: {list: [0, !Ref global_config.model.size]}
""".replace("HERE", __name__)


def any_node(batch, config=None, **kwargs):
    """Do nothing and read any key."""


ONE_NODE = "dag_id: d\nnodes: [{node_id: a, node_type: COMPUTE, executable_ref: 'tasks:generate'%s}]"


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text)
    return path


def test_yaml_grpo_is_the_python_grpo(tmp_path):
    graph = load_yaml(write(tmp_path, GRPO))
    assert graph.digest == load_pipeline("grpo").digest
    assert graph.graph_id == "my_grpo" and graph.description == "GRPO without a line of Python"


def test_one_changed_value_changes_the_digest(tmp_path):
    changed = GRPO.replace("node_role: REFERENCE", "node_role: ACTOR")
    assert load_yaml(write(tmp_path, changed)).digest != load_pipeline("grpo").digest


def test_a_graph_as_json_is_a_pipeline_file(tmp_path):
    graph = load_pipeline("embodied_grpo")
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(graph.to_dict()))
    assert load_pipeline(yaml=path).digest == graph.digest


def test_ref_stands_for_a_value_anywhere_in_a_node(tmp_path):
    node = load_yaml(write(tmp_path, WITH_REFS)).nodes["rollout"]
    assert node.retries == 2
    assert node.config == {"whole": {"size": "7B", "layers": [1, 2]}, "deep": {"list": [0, "7B"]}}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (".model.size", ".model.length", "deep: list[1]: !Ref global_config.model.length: no key 'length'"),
        (".model.size", ".model.size.x", "no key 'x'; there are no keys"),
        (
            ".model.size",
            ".model.layers.0",
            "global_config.model.layers is a list; a path must lead through mappings",
        ),
        (".model.size", ".model.0", "no key '0'; allowed are size, layers"),
        (".model.size", ".sizes.7", "no key '7'; key 7 is not a string; write it in quotes"),
        (
            ".model.size",
            ".nested",
            "must lead to a value without references, not to one with !Ref global_config.patience",
        ),
        ("global_config.model.size", "config.model", "must begin with 'global_config.'"),
        ("size: 7B", "size:", "must lead to a value, not to None"),
        ("size: 7B", "size: !Ref global_config.patience", "must lead to a value"),
    ],
)
def test_an_unresolved_ref_names_file_node_and_key(tmp_path, old, new, expected):
    with pytest.raises(ConfigError) as caught:
        load_yaml(write(tmp_path, WITH_REFS.replace(old, new)))
    assert str(caught.value).startswith(f"{tmp_path / 'mine.yaml'}: node 'rollout': config: ")
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nodes: []", "dag_id: Field required"),
        ("dag_id: d", "nodes: must be a list of nodes"),
        ("dag_id: d\nnodes: {}", "nodes: must be a list of nodes"),
        ("dag_id: d\nnodes: []", "nodes: must not be empty"),
        ("dag_id: 3\nnodes: []", "dag_id: Input should be a valid string"),
        ("dag_id: d\nnodes: []\nedges: []", "edges: Extra inputs are not permitted; the keys are dag_id"),
        ("- a\n- b", "must be a mapping with the keys dag_id, description, global_config, nodes"),
        ("", "must be a mapping"),
        ("dag_id: [", "is not YAML: while parsing"),
        ("dag_id: d\nglobal_config: {1: a}\nnodes: []", "global_config: key 1: must be a string; write it in quotes"),
        (
            "dag_id: d\nglobal_config: {a: &a [*a]}\nnodes: []",
            "is not YAML: alias 'a' refers to a value that contains it",
        ),
        (ONE_NODE % ", config: &a {b: {c: *a}}", "is not YAML: alias 'a' refers to a value that contains it"),
        ("dag_id: d\ndag_id: e\nnodes: []", "key 'dag_id' is given twice"),
        (
            ONE_NODE % ", config: {a: 2026-13-41}",
            "has a value that cannot be read; write text in quotes: month must be",
        ),
        (
            ONE_NODE % f", config: {{a: {'9' * 5000}}}",
            "has a value that cannot be read; write text in quotes: Exceeds the",
        ),
        (
            ONE_NODE % f", config: {{a: {'[' * 2000}{']' * 2000}}}",
            "is nested too deeply; allowed are some hundred levels",
        ),
        (
            ONE_NODE % ", timeout_seconds: 1.0e+300",
            "node 'a': timeout_seconds=1e+300: should be less than or equal to 10",
        ),
        (ONE_NODE % ", retries: 1000000000", "node 'a': retries=1000000000: should be less than or equal to 1000"),
        ("dag_id: !!python/object:os.system {}\nnodes: []", "is not YAML: could not determine a constructor"),
        ("dag_id: d\nnodes: [a]", "node 'nodes[0]': must be a mapping, not 'a'"),
        ("dag_id: d\nnodes: [{node_type: COMPUTE}]", "node 'nodes[0]': node_id: is missing"),
        (ONE_NODE % ", agents: 0", "node 'a': agents: unknown key; allowed are node_id"),
        (ONE_NODE % ", agent_group: 0", "node 'a': agent_group: belongs to siiRL's multi-agent graphs"),
        (ONE_NODE % ", dependencies: b", "node 'a': dependencies='b': should be a valid tuple"),
        (ONE_NODE % ", dependencies: !!set {b}", "node 'a': dependencies={'b'}: must be a list, since its first node"),
        (ONE_NODE % ", retries: yes", "node 'a': retries=True: should be a valid integer"),
        ("dag_id: d\nnodes: [{node_id: a, executable_ref: 'math:sqrt'}]", "'a': node_type: is missing"),
        ("dag_id: d\nnodes: [{node_id: a, node_type: COMPUTE}]", "node 'a': executable_ref: is missing"),
    ],
)
def test_an_invalid_file_is_refused_by_name(tmp_path, text, expected):
    with pytest.raises(ConfigError) as caught:
        load_yaml(write(tmp_path, text))
    assert str(caught.value).startswith(f"{tmp_path / 'mine.yaml'}: ") and expected in str(caught.value)


def test_a_misspelt_function_is_one_line(tmp_path):
    with pytest.raises(GraphError) as caught:
        load_yaml(write(tmp_path, "dag_id: d\nnodes: [{node_id: a, executable_ref: 'tasks:genrate'}]"))
    [problem] = caught.value.problems
    assert problem.message == "executable_ref='tasks:genrate': 'tasks' has no attribute 'genrate'"


def test_an_unresolved_ref_hides_no_other_mistake(tmp_path):
    spoiled = GRPO.replace("tasks:generate", "tasks:genrate").replace(
        "dependencies: [ref_log_prob]", "dependencies: [ref_log_prob, ghost, !Ref global_config.a]\n    retries: 1"
    )
    spoiled = spoiled.replace("node_role: ADVANTAGE", "timeout_seconds: !Ref global_config.b\n    config: {c: !Ref d}")
    spoiled = spoiled.replace("tasks:compute_old_log_prob", "!Ref global_config.function")
    with pytest.raises(GraphError) as caught:
        load_yaml(write(tmp_path, spoiled))
    found = [(problem.node_id, problem.message.partition(";")[0]) for problem in caught.value.problems]
    assert sorted(found) == [
        ("advantage", "config: c: !Ref d: a path must begin with 'global_config.'"),
        ("advantage", "timeout_seconds: !Ref global_config.b: no key 'b'"),
        ("old_log_prob", "executable_ref: !Ref global_config.function: no key 'function'"),
        ("rollout", "executable_ref='tasks:genrate': 'tasks' has no attribute 'genrate'"),
        ("train_actor", "dependencies: no node 'ghost'"),
        ("train_actor", "dependencies[2]: !Ref global_config.a: no key 'a'"),
        ("train_actor", "retries=1: must be 0 for a node that trains"),
    ]


def test_aliases_may_repeat_a_value(tmp_path):
    aliased = ONE_NODE % ", config: {a: &x [1, 2], b: *x, c: {d: *x}}"
    aliased = aliased.replace("tasks:generate", f"{__name__}:any_node")
    assert load_yaml(write(tmp_path, aliased)).nodes["a"].config == {"a": [1, 2], "b": [1, 2], "c": {"d": [1, 2]}}


def test_a_key_that_no_one_reads_is_refused_with_file_and_node(tmp_path):
    misspelt = GRPO.replace("node_role: ADVANTAGE", "node_role: ADVANTAGE\n    config: {gama: 0.9}")
    path = write(tmp_path, misspelt)
    with pytest.raises(GraphError) as caught:
        load_yaml(path)
    expected = "node 'advantage': config.gama: unknown key; tasks:compute_advantage reads none"
    assert str(caught.value) == f"{path}: {expected}"


def test_duplicate_ids_in_a_file_are_refused(tmp_path):
    twice = GRPO + "  - {node_id: reward, node_type: COMPUTE, executable_ref: 'tasks:compute_reward'}\n"
    with pytest.raises(GraphError, match="node 'reward': node_id: duplicate, used 2 times"):
        load_yaml(write(tmp_path, twice))


def test_the_schema_file_is_current():
    assert SCHEMA_FILE.read_text(encoding="utf-8") == schema_text(), "run python -m embodyflow.graph.schema"


def test_the_schema_accepts_a_file_that_the_loader_accepts(tmp_path):
    load_yaml(write(tmp_path, GRPO))  # with node types in lower case and a function with a dot
    jsonschema.validate(yaml.safe_load(GRPO), json.loads(schema_text()))
    for wrong in (GRPO.replace("model_train", "training"), GRPO.replace("tasks.compute_reward", "compute_reward")):
        assert wrong != GRPO
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(yaml.safe_load(wrong), json.loads(schema_text()))


def test_the_schema_accepts_a_pipeline_and_refuses_a_misspelt_key():
    schema, content = json.loads(schema_text()), load_pipeline("grpo").to_dict()
    jsonschema.validate(content, schema)
    content["nodes"][0]["dependncies"] = []
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(content, schema)
    assert yaml.safe_load(schema_text())["additionalProperties"] is False
