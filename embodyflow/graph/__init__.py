"""Graphs of nodes that describe an algorithm: built in Python or YAML, checked, planned and drawn."""

from embodyflow.graph.builder import Pipeline
from embodyflow.graph.graph import TaskGraph
from embodyflow.graph.loading import BUILT_IN, load_pipeline
from embodyflow.graph.node import Node, NodeRole, NodeType
from embodyflow.graph.validation import GraphError, Problem

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
