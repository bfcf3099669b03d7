"""Pipelines: an algorithm as a graph of nodes, written in Python or YAML, checked, planned and drawn."""

from pipelines.builder import Pipeline
from pipelines.graph import TaskGraph
from pipelines.node import Node, NodeRole, NodeType
from pipelines.registry import BUILT_IN, load_pipeline
from pipelines.validation import GraphError, Problem

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
