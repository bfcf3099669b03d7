"""A graph or a plan as text and as a picture."""

import json
import shutil
import subprocess
from collections.abc import Iterable, Sequence

from embodyflow.errors import ConfigError
from embodyflow.graph.graph import TaskGraph
from embodyflow.graph.node import Node, NodeType
from embodyflow.graph.planning.planner import Plan

_SHAPES = {
    NodeType.COMPUTE: "ellipse",
    NodeType.DATA_LOAD: "cylinder",
    NodeType.MODEL_INFERENCE: "box",
    NodeType.MODEL_TRAIN: "box3d",
}
_LEGEND = {
    NodeType.COMPUTE: "ellipse: a computation on rows",
    NodeType.DATA_LOAD: "cylinder: a source of rows",
    NodeType.MODEL_INFERENCE: "box: a model of the rollout",
    NodeType.MODEL_TRAIN: "3-D box: a model of the trainer",
}


def to_table(plan: Plan) -> str:
    """Format a plan as two tables: the ranks of each node, and the chain and memory of each worker."""
    limit = plan.cluster.device_gib
    verdict = "" if plan.fits else f"\nDoes not fit: a device has {limit:g} GiB.\n"
    return f"{_align(_node_rows(plan))}\n{_align(_worker_rows(plan))}{verdict}"


def _node_rows(plan: Plan) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("node", "type", "role", "group", "ranks", "dp×pp×tp")]
    for node_id in plan.graph.get_execution_order():
        node = plan.graph.nodes[node_id]
        layout = plan.settings.layout_of(node)
        cut = f"{plan.data_parallel(node_id)}×{layout.pipeline}×{layout.tensor}"
        ranks = _ranges(plan.node_ranks[node_id])
        rows.append((node_id, node.node_type, node.node_role, plan.group_of(node_id), ranks, cut))
    return rows


def _worker_rows(plan: Plan) -> list[tuple[str, ...]]:
    """Return one row per set of workers that share machine, chain and memory."""
    alike: dict[tuple[str, str, str], list[int]] = {}
    for chain, ranks in plan.chains.items():
        for rank in ranks:
            machine = str(rank // plan.cluster.devices_per_node)
            alike.setdefault((machine, chain.chain_id, f"{plan.memory[rank] / 2**30:.2f}"), []).append(rank)
    rows = sorted(alike.items(), key=lambda row: row[1])
    return [("ranks", "machine", "chain", "memory GiB"), *((_ranges(ranks), *same) for same, ranks in rows)]


def to_dot(graph: TaskGraph, plan: Plan | None = None) -> str:
    """Format a graph in Graphviz's language, with a legend below it; with a plan each node names its ranks."""
    kinds = {node.node_type for node in graph.nodes.values()}
    legend = "   ".join(meaning for kind, meaning in _LEGEND.items() if kind in kinds)
    lines = [f"digraph {_quote(graph.graph_id)} {{", "  rankdir=LR;", '  node [fontname="Helvetica"];']
    lines.append(f'  label={_quote(legend)}; labelloc=b; fontname="Helvetica"; fontsize=11;')
    for node in graph.nodes.values():
        label = _quote("\n".join(_label(node, plan)))
        lines.append(f"  {_quote(node.node_id)} [shape={_SHAPES[node.node_type]}, label={label}];")
    lines += [f"  {_quote(parent)} -> {_quote(child)};" for parent, child in _edges(graph)]
    return "\n".join([*lines, "}"]) + "\n"


def to_mermaid(graph: TaskGraph, plan: Plan | None = None) -> str:
    """Format a graph in Mermaid's language, which Markdown viewers render."""
    names = {node_id: f"n{index}" for index, node_id in enumerate(graph.nodes)}
    lines = ["flowchart LR"]
    for node in graph.nodes.values():
        left, right = ("[", "]") if node.node_type.is_model else ("([", "])")
        lines.append(f'  {names[node.node_id]}{left}"{"<br/>".join(_label(node, plan))}"{right}')
    lines += [f"  {names[parent]} --> {names[child]}" for parent, child in _edges(graph)]
    return "\n".join(lines) + "\n"


def to_svg(graph: TaskGraph, plan: Plan | None = None) -> str:
    """Draw a graph as SVG.

    Raises:
        ConfigError: Graphviz's ``dot`` is not installed.
        subprocess.CalledProcessError: ``dot`` failed.
    """
    dot = shutil.which("dot")
    if dot is None:
        raise ConfigError("SVG needs Graphviz's program `dot` (package graphviz); Mermaid needs no program")
    drawn = subprocess.run([dot, "-Tsvg"], input=to_dot(graph, plan), text=True, capture_output=True, check=True)
    return drawn.stdout


def _label(node: Node, plan: Plan | None) -> list[str]:
    lines = [node.node_id, node.executable_ref]
    return lines if plan is None else [*lines, f"ranks {_ranges(plan.node_ranks[node.node_id])}"]


def _edges(graph: TaskGraph) -> Iterable[tuple[str, str]]:
    return ((parent, child) for parent, children in graph.adj.items() for child in children)


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _ranges(ranks: Sequence[int]) -> str:
    """Format ascending ranks as ``0-3,6``."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _align(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"{line.rstrip()}\n" for line in lines)
