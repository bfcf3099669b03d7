"""Graphs written in Python."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from embodyflow.graph.built_in_functions import built_in_name
from embodyflow.graph.graph import TaskGraph, build_graph
from embodyflow.graph.node import NodeRole, NodeType
from embodyflow.graph.validation import GraphError, Problem


class Pipeline:
    """Collect nodes and build their graph.

    Args:
        pipeline_id: Name of the graph.
        description: Text for readers.

    Example:
        >>> graph = (
        ...     Pipeline("mine", "rollout, then my own node")
        ...     .add_node("rollout", func="tasks:generate", deps=[], node_type=NodeType.MODEL_INFERENCE)
        ...     .add_node("mine", func="my_module:my_function", deps=["rollout"])
        ...     .build()
        ... )
    """

    def __init__(self, pipeline_id: str, description: str = "") -> None:
        self.pipeline_id = pipeline_id
        self.description = description
        self._specs: dict[str, dict[str, Any]] = {}

    def add_node(
        self,
        node_id: str,
        func: str | Callable[..., Any],
        deps: Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        node_type: NodeType | str | None = None,
        node_role: NodeRole | str | None = None,
        only_forward_compute: bool | None = None,
        retries: int = 0,
        timeout_seconds: float | None = None,
        reads: Sequence[str] | None = None,
        writes: Sequence[str] | None = None,
    ) -> "Pipeline":
        """Add one node and return the pipeline; :meth:`build` reports mistakes in the node.

        Args:
            node_id: Name of the node, unique in the pipeline.
            func: Function of a module, itself or as ``"module:function"`` or ``"module:Class.method"``.
            deps: Nodes whose output the node reads; they may be added later.
            config: JSON-able values that the function gets as ``config``.
            node_type: Kind of work, which decides where the node runs; ``None`` means that of the built-in function,
                and ``COMPUTE`` for a function of your own.
            node_role: Part of the algorithm; for a model node it selects the weights. ``None`` means that of the
                built-in function, and ``DEFAULT`` for a function of your own.
            only_forward_compute: True if the node uses weights and never changes them; ``None`` means True for built-in
                functions that compute with weights, else False.
            retries: Retries after a failure; a node that trains allows none.
            timeout_seconds: Seconds that the node may take; ``None`` means the cluster's ``node_timeout``.
            reads: Columns that the node needs; ``None`` means those that the function declares.
            writes: Columns that the node adds; ``None`` means those that the function declares.

        Raises:
            GraphError: The id is taken.
        """
        if node_id in self._specs:
            raise GraphError([Problem(node_id, "node_id: duplicate")], self.pipeline_id)
        if node_type is None and built_in_name(func) is None:
            node_type = NodeType.COMPUTE
        settings = {
            "node_type": node_type,
            "node_role": node_role,
            "only_forward_compute": only_forward_compute,
        }
        self._specs[node_id] = {
            "node_id": node_id,
            "executable_ref": func,
            "dependencies": () if deps is None else deps,
            "config": {} if config is None else config,
            **{key: value for key, value in settings.items() if value is not None},
            "retries": retries,
            "timeout_seconds": timeout_seconds,
            "reads": reads,
            "writes": writes,
        }
        return self

    def build(self) -> TaskGraph:
        """Return the checked graph.

        Raises:
            GraphError: The graph has problems, one line each.
        """
        specs = list(self._specs.values())
        return build_graph(specs, self.pipeline_id, self.description, source=f"pipeline {self.pipeline_id!r}")
