"""Generated graphs: good ones build, and 200 bad ones are refused with the node named."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodyflow.graph.graph import build_graph
from pipelines import GraphError, Pipeline, TaskGraph


def any_node(batch, config=None, **kwargs):
    """Do nothing and declare no columns."""


REFERENCE = f"{__name__}:any_node"


@st.composite
def good_specs(draw: st.DrawFn) -> list[dict[str, Any]]:
    size = draw(st.integers(2, 12))
    specs = []
    for index in range(size):
        parents = draw(st.lists(st.integers(0, index - 1), unique=True, max_size=3)) if index else []
        specs.append(
            {
                "node_id": f"n{index}",
                "executable_ref": REFERENCE,
                "node_type": draw(st.sampled_from(["COMPUTE", "MODEL_TRAIN", "model_inference"])),
                "dependencies": [f"n{parent}" for parent in parents],
                "reads": [],
                "writes": [],
            }
        )
    return draw(st.permutations(specs))


def _cycle(specs: list[dict[str, Any]], index: int) -> None:
    other = specs[index - 1]
    specs[index]["dependencies"] = sorted({*specs[index]["dependencies"], other["node_id"]})
    other["dependencies"] = sorted({*other["dependencies"], specs[index]["node_id"]})


SPOILERS = {
    "duplicate id": lambda specs, i: specs.append(dict(specs[i])),
    "missing id": lambda specs, i: specs[i].pop("node_id"),
    "id of another type": lambda specs, i: specs[i].update(node_id=7),
    "missing type": lambda specs, i: specs[i].pop("node_type"),
    "unknown type": lambda specs, i: specs[i].update(node_type="BARRIER_SYNC"),
    "unknown role": lambda specs, i: specs[i].update(node_role="TEACHER"),
    "role on the wrong type": lambda specs, i: specs[i].update(node_type="DATA_LOAD", node_role="ACTOR"),
    "missing dependency": lambda specs, i: specs[i].update(dependencies=["ghost"]),
    "dependencies not a list": lambda specs, i: specs[i].update(dependencies="n0"),
    "dependencies a set": lambda specs, i: specs[i].update(dependencies={"ghost"}),
    "depends on itself": lambda specs, i: specs[i].update(dependencies=[specs[i]["node_id"]]),
    "cycle": _cycle,
    "no function": lambda specs, i: specs[i].pop("executable_ref"),
    "unresolvable function": lambda specs, i: specs[i].update(executable_ref="tasks:compute_happiness"),
    "config not a mapping": lambda specs, i: specs[i].update(config=["not", "a", "mapping"]),
    "negative retries": lambda specs, i: specs[i].update(retries=-1),
    "retries not a number": lambda specs, i: specs[i].update(retries="many"),
    "unknown key": lambda specs, i: specs[i].update(agent_group=0),
    "column nobody writes": lambda specs, i: specs[i].update(reads=["nobody_writes_this"]),
    "not a mapping": lambda specs, i: specs.__setitem__(i, "just a string"),
}


@settings(max_examples=200, deadline=None, derandomize=True)
@given(specs=good_specs(), kind=st.sampled_from(sorted(SPOILERS)), data=st.data())
def test_200_bad_graphs_are_refused_with_the_node_named(specs, kind, data):
    index = data.draw(st.integers(0, len(specs) - 1))
    specs = [dict(spec) for spec in specs]
    culprits = {specs[index]["node_id"], f"nodes[{index}]"}
    if kind == "cycle":
        culprits |= {spec["node_id"] for spec in specs}
    SPOILERS[kind](specs, index)
    with pytest.raises(GraphError) as caught:
        build_graph(specs, "bad", "", source="bad.yaml")
    named = [problem for problem in caught.value.problems if problem.node_id in culprits]
    assert named, (kind, str(caught.value))
    assert all(line.startswith("bad.yaml: ") for line in str(caught.value).splitlines())


@settings(max_examples=60, deadline=None, derandomize=True)
@given(specs=good_specs())
def test_good_graphs_build_with_nodes_in_any_order(specs):
    graph = build_graph(specs, "good", "", source="good")
    order = graph.get_execution_order()
    assert sorted(order) == sorted(spec["node_id"] for spec in specs)
    assert all(order.index(p) < order.index(n) for n, parents in graph.rev_adj.items() for p in parents)
    assert TaskGraph.from_dict(graph.to_dict()).digest == graph.digest


@settings(max_examples=40, deadline=None, derandomize=True)
@given(specs=good_specs())
def test_python_and_specs_build_the_same_graph(specs):
    pipeline = Pipeline("good")
    for spec in specs:
        fields = dict(spec)
        pipeline.add_node(fields.pop("node_id"), fields.pop("executable_ref"), fields.pop("dependencies"), **fields)
    assert pipeline.build().digest == build_graph(specs, "good", "", source="good").digest
