"""The graphs of this project, one per file. Start your own graph with ``from pipelines import Pipeline``."""

from embodyflow.graph import (
    BUILT_IN,
    GraphError,
    Node,
    NodeRole,
    NodeType,
    Pipeline,
    Problem,
    TaskGraph,
    load_pipeline,
)

__all__ = [
    "BUILT_IN",
    "GraphError",
    "Node",
    "NodeRole",
    "NodeType",
    "Pipeline",
    "Problem",
    "TaskGraph",
    "load_pipeline",
]
