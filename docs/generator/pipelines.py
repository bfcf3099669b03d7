"""The pages of built-in graphs and of node functions."""

import inspect
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tasks
from docs.generator.markdown import code, document, first_paragraph, prose, table
from embodyflow.graph import BUILT_IN, TaskGraph, load_pipeline
from embodyflow.graph.drawing import to_svg
from embodyflow.nodes.declarations import declared
from embodyflow.references import resolve

PICTURES = Path(__file__).resolve().parents[1] / "reference" / "pictures"


def page(problems: list[str]) -> str:
    """Return the page of pipelines; draw them beside it where Graphviz is installed."""
    return document(
        "Pipelines",
        "The graphs that ship, one file each under `pipelines/`. An algorithm names its pipeline; "
        "`pipeline.name=`, `pipeline.custom_fn=module:function` and `pipeline.yaml=file` choose another. In the "
        "pictures a box is a node that uses a model, a 3-D box one that trains it.",
        *(_section(name) for name in sorted(BUILT_IN)),
    )


def _section(name: str) -> str:
    graph = load_pipeline(name)
    description = prose(resolve(BUILT_IN[name]).__doc__).partition("\n\n")[2]
    rows = [
        (
            code(node.node_id),
            code(node.executable_ref),
            ", ".join(map(code, node.dependencies)) or "–",
            str(node.node_type),
            str(node.node_role),
        )
        for node in (graph.nodes[node_id] for node_id in graph.get_execution_order())
    ]
    parts = [f"## {code(name)}", first_paragraph(inspect.getmodule(resolve(BUILT_IN[name])).__doc__)]
    parts += [picture] if (picture := _picture(name, graph)) else []
    parts += [description] if description else []
    return "\n\n".join([*parts, table(("Node", "Function", "After", "Type", "Role"), rows)])


def _picture(name: str, graph: TaskGraph) -> str:
    if shutil.which("dot") is None:
        return ""
    PICTURES.mkdir(parents=True, exist_ok=True)
    (PICTURES / f"{name}.svg").write_text(to_svg(graph))
    return f"![The graph {name}](pictures/{name}.svg){{ .graph }}"


def nodes_page(problems: list[str]) -> str:
    """Return the page of node functions.

    Args:
        problems: Takes a line for a function has no docstring.
    """
    functions = {name: getattr(tasks, name) for name in sorted(tasks.__all__)}
    if silent := [name for name, function in functions.items() if not function.__doc__]:
        problems.append(f"no docstring in tasks: {', '.join(silent)}")
    return document(
        "Node functions",
        "What a graph's nodes call, by `tasks:<name>`. A node reads and writes [columns](columns.md). "
        "Write your own as `def f(batch, config=None, **kwargs) -> NodeOutput`.",
        *(_function(name, function) for name, function in functions.items()),
    )


def _function(name: str, function: Callable[..., Any]) -> str:
    columns = [(what, declared(function, f"__{what}__")) for what in ("reads", "writes")]
    rows = [(what.capitalize(), ", ".join(map(code, names)) or "–") for what, names in columns if names is not None]
    parts = [f"## {code(f'tasks:{name}')}", prose(function.__doc__)]
    return "\n\n".join([*parts, table(("", "Columns"), rows)] if rows else parts)
