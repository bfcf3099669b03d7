"""A graph written in Python."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from embodyflow.graph.graph import TaskGraph, build_graph
from embodyflow.graph.node import NodeRole, NodeType
from embodyflow.graph.validation import GraphError, Problem


class Pipeline:
    """Collects nodes and builds the graph of them.

    Args:
        pipeline_id: the graph's name.
        description: for people.

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
        node_type: NodeType | str = NodeType.COMPUTE,
        node_role: NodeRole | str = NodeRole.DEFAULT,
        only_forward_compute: bool = False,
        retries: int = 0,
        timeout_seconds: float | None = None,
        reads: Sequence[str] | None = None,
        writes: Sequence[str] | None = None,
    ) -> "Pipeline":
        """Add one node and return the pipeline. What is wrong with it, :meth:`build` reports.

        Args:
            node_id: unique in the pipeline.
            func: a function of a module, ``"module:function"`` or ``"module:Class.method"``.
            deps: nodes whose output the node reads; they may be added later.
            config: JSON-able values, given to the function as ``config``.
            node_type: what the node does, and so where it runs.
            node_role: which part of the algorithm it plays.
            only_forward_compute: the node uses weights and never changes them.
            retries: how often the node is run again after it fails; a node that trains never is.
            timeout_seconds: how long it may take; ``None`` means as long as the cluster's ``node_timeout``.
            reads: columns it needs; ``None`` means those the function declares.
            writes: columns it adds; ``None`` means those the function declares.

        Raises:
            GraphError: the id is taken.
        """
        if node_id in self._specs:
            raise GraphError([Problem(node_id, "node_id: duplicate")], self.pipeline_id)
        self._specs[node_id] = {
            "node_id": node_id,
            "executable_ref": func,
            "dependencies": () if deps is None else deps,
            "config": {} if config is None else config,
            "node_type": node_type,
            "node_role": node_role,
            "only_forward_compute": only_forward_compute,
            "retries": retries,
            "timeout_seconds": timeout_seconds,
            "reads": reads,
            "writes": writes,
        }
        return self

    def build(self) -> TaskGraph:
        """Return the checked graph.

        Raises:
            GraphError: one line per problem, all of them.
        """
        specs = list(self._specs.values())
        return build_graph(specs, self.pipeline_id, self.description, source=f"pipeline {self.pipeline_id!r}")
