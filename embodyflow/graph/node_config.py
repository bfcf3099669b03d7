"""Check the ``config`` of nodes: a key that the node's function does not read is refused."""

import reprlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from embodyflow.errors import ConfigError
from embodyflow.graph.built_in_functions import KINDS, built_in_name
from embodyflow.graph.node import Node
from embodyflow.graph.planning.memory_estimate import parse_num_params
from embodyflow.nodes.declarations import declared
from embodyflow.references import resolve

MODEL_PARAMS = "model_params"
"""Key that the planner reads from every node with a model: the number of parameters."""


def config_problems(
    nodes: Mapping[str, Node], functions: Mapping[str, Callable[..., Any]]
) -> Iterator[tuple[str, str]]:
    """Find keys that no one reads, and values that their reader refuses.

    A function of :mod:`tasks` reads the keys of its kind, and those that it declares. Another function is checked only
    if it declares its keys.

    Args:
        nodes: Nodes of a graph without other problems, by id.
        functions: Functions by node; one that is missing is imported where its keys decide.

    Yields:
        Id of the node, and what is wrong and allowed.
    """
    for node_id, node in nodes.items():
        name = built_in_name(node.executable_ref)
        known = [MODEL_PARAMS] if node.node_type.is_model else []
        known += KINDS[name].columns_by_key if name is not None else ()
        if node.config.keys() - known:
            function = functions.get(node_id)
            if function is None and name is not None:  # imported only here, since that takes seconds
                function = resolve(node.executable_ref)
            own = declared(function, "__config__")
            if own is None and name is None:
                continue
            known += own or ()
        for key, value in node.config.items():
            if key not in known:
                keys = f"allowed are {', '.join(known)}" if known else f"{node.executable_ref} reads none"
                yield node_id, f"config.{key}: unknown key; {keys}"
            elif (problem := _problem_of(key, value, name)) is not None:
                yield node_id, f"config.{key}={reprlib.repr(value)}: {problem}"


def columns_of_config(node: Node) -> set[str]:
    """Return the columns that a built-in function reads because its node's ``config`` names them."""
    name = built_in_name(node.executable_ref)
    keys = KINDS[name].columns_by_key if name is not None else ()
    return {str(node.config[key]) for key in keys if key in node.config}


def _problem_of(key: str, value: object, name: str | None) -> str | None:
    if name is not None and key in KINDS[name].columns_by_key and not (isinstance(value, str) and value):
        return "must be the name of a column"
    if key == MODEL_PARAMS:
        try:
            parse_num_params(value, "config")
        except ConfigError as error:
            return str(error).rpartition(": ")[2]
    return None
