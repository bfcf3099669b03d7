"""What a graph may leave out: the type and role of a built-in function, and the function of a role.

Roles select functions as in siiRL (``DAGWorker._set_node_executables``), so its workflow files need no function.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from embodyflow.graph.node import Node, NodeRole, NodeType
from embodyflow.graph.node_groups import Group, group_in


@dataclass(frozen=True)
class Kind:
    """Settings of a node that runs a built-in function.

    Attributes:
        node_type: Kind of work.
        node_role: Part of the algorithm.
        only_forward_compute: True if the function uses the trainer's weights and never changes them.
        group: Worker group whose engine has the methods that the function calls; ``None`` is either.
        trains: True if the function changes weights.
        columns_by_key: Keys of its node's ``config`` that it reads, each of which names a column.
    """

    node_type: NodeType = NodeType.COMPUTE
    node_role: NodeRole = NodeRole.DEFAULT
    only_forward_compute: bool = False
    group: Group | None = None
    trains: bool = False
    columns_by_key: tuple[str, ...] = ()


_ROLLOUT = Kind(NodeType.MODEL_INFERENCE, NodeRole.ROLLOUT, group="rollout")
_REWARD = Kind(node_role=NodeRole.REWARD)
_SAMPLING = Kind(node_role=NodeRole.DYNAMIC_SAMPLING, columns_by_key=("uniform",))


def _forward(role: NodeRole) -> Kind:
    return Kind(NodeType.MODEL_TRAIN, role, only_forward_compute=True, group="trainer")


def _training(role: NodeRole) -> Kind:
    return Kind(NodeType.MODEL_TRAIN, role, group="trainer", trains=True)


KINDS = {
    "generate": _ROLLOUT,
    "collect_steps": _ROLLOUT,
    "demonstrate": _ROLLOUT,
    "label_episodes": _ROLLOUT,
    "dynamic_sampling": _ROLLOUT,
    "compute_baseline": _ROLLOUT,
    "filter_groups": _SAMPLING,
    "embodied_sampling": _SAMPLING,
    "compute_reward": _REWARD,
    "compute_kl_penalty": _REWARD,
    "score_progress": Kind(NodeType.MODEL_INFERENCE, NodeRole.REWARD),
    "classify_success": Kind(NodeType.MODEL_INFERENCE, NodeRole.REWARD, group="trainer"),
    "compute_advantage": Kind(node_role=NodeRole.ADVANTAGE),
    "split_decisions": Kind(),
    "compute_old_log_prob": _forward(NodeRole.ACTOR),
    "compute_ref_log_prob": _forward(NodeRole.REFERENCE),
    "compute_agent_baseline": _forward(NodeRole.ACTOR),
    "compute_value": _forward(NodeRole.CRITIC),
    "value_steps": _forward(NodeRole.CRITIC),
    "train_actor": _training(NodeRole.ACTOR),
    "train_actor_critic": _training(NodeRole.ACTOR),
    "train_critic": _training(NodeRole.CRITIC),
    "store_episodes": _training(NodeRole.ACTOR),
    "store_transitions": _training(NodeRole.ACTOR),
    "train_off_policy": _training(NodeRole.ACTOR),
    "train_offline": _training(NodeRole.ACTOR),
    "store_labels": _training(NodeRole.ACTOR),
    "train_on_labels": _training(NodeRole.ACTOR),
    "fit": _training(NodeRole.ACTOR),
}
"""Functions of ``tasks`` for graphs, with the settings of their nodes."""

FUNCTIONS = {
    **{(NodeRole.ROLLOUT, forward): "generate" for forward in (False, True)},
    **{(NodeRole.REFERENCE, forward): "compute_ref_log_prob" for forward in (False, True)},
    **{(NodeRole.REWARD, forward): "compute_reward" for forward in (False, True)},
    **{(NodeRole.ADVANTAGE, forward): "compute_advantage" for forward in (False, True)},
    **{(NodeRole.DYNAMIC_SAMPLING, forward): "filter_groups" for forward in (False, True)},
    (NodeRole.ACTOR, True): "compute_old_log_prob",
    (NodeRole.ACTOR, False): "train_actor",
    (NodeRole.CRITIC, True): "compute_value",
    (NodeRole.CRITIC, False): "train_critic",
}
"""Functions of ``tasks`` by a node's role and its ``only_forward_compute``."""


def built_in_name(reference: object) -> str | None:
    """Return the name in :data:`KINDS` of a function of ``tasks`` or of its reference; ``None`` for others."""
    if callable(reference):
        reference = f"{getattr(reference, '__module__', '')}:{getattr(reference, '__qualname__', '')}"
    found = re.fullmatch(r"tasks(?:\.[a-z_]+)?[.:](\w+)", reference) if isinstance(reference, str) else None
    return found[1] if found is not None and found[1] in KINDS else None


def infer(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a node's spec with what it leaves out: its function by its role, or type and role by its function.

    Keys that the spec has stay as they are. What cannot be inferred stays missing.
    """
    spec = dict(spec)
    if "executable_ref" not in spec and (function := _function_of(spec)) is not None:
        spec["executable_ref"] = f"tasks:{function}"
    if (name := built_in_name(spec.get("executable_ref"))) is None:
        return spec
    kind = KINDS[name]
    spec.setdefault("node_type", kind.node_type)
    if str(spec["node_type"]).upper() != NodeType.DATA_LOAD:  # which allows no role
        spec.setdefault("node_role", kind.node_role)
    spec.setdefault("only_forward_compute", kind.only_forward_compute)
    return spec


def misplaced(nodes: Mapping[str, Node]) -> Iterator[tuple[str, str]]:
    """Find built-in functions whose node would run them on an engine without their methods, or as what they are not.

    Args:
        nodes: Nodes of a graph without other problems, by id.

    Yields:
        Id of the node, and what is wrong and allowed.
    """
    for node_id, node in nodes.items():
        if (name := built_in_name(node.executable_ref)) is None:
            continue
        kind, group = KINDS[name], group_in(nodes, node_id)
        if kind.group not in (None, group):
            role = f" and node_role={kind.node_role}" if kind.group == "rollout" else ""
            yield (
                node_id,
                f"node_type={node.node_type} and node_role={node.node_role}: tasks:{name} would run on the {group} "
                f"workers, but it needs those of the group {kind.group}; allowed are node_type={kind.node_type}{role}, "
                "or leave both out",
            )
        elif name == "dynamic_sampling" and (after := _above(nodes, node_id, "compute_advantage")) is not None:
            yield (
                node_id,
                f"tasks:{name} generates episodes, which would lack the advantages of {after!r}; put it before that "
                "node, or use tasks:filter_groups, which only drops groups",
            )
        elif kind.trains and not node.changes_weights:
            yield (
                node_id,
                f"node_type={node.node_type}: tasks:{name} changes weights; allowed are node_type=MODEL_TRAIN with "
                f"node_role={kind.node_role} and only_forward_compute=false",
            )


def _above(nodes: Mapping[str, Node], node_id: str, name: str) -> str | None:
    """Return an ancestor that runs a built-in function, or ``None``."""
    waiting = list(nodes[node_id].dependencies)
    for parent in waiting:
        if built_in_name(nodes[parent].executable_ref) == name:
            return parent
        waiting.extend(each for each in nodes[parent].dependencies if each not in waiting)
    return None


def _function_of(spec: Mapping[str, Any]) -> str | None:
    try:
        role = NodeRole(spec.get("node_role", NodeRole.DEFAULT))
    except ValueError:
        return None  # the check of the node reports the role
    return FUNCTIONS.get((role, spec.get("only_forward_compute", False) is True))
