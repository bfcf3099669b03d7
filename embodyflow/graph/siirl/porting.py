"""Port a workflow file of siiRL: change what differs here, and report every change and everything left to do."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from embodyflow.graph.built_in_functions import KINDS, built_in_name, infer
from embodyflow.graph.node import NodeType
from embodyflow.graph.siirl.ported_agents import PortedAgents, port_agents
from embodyflow.graph.siirl.transport_nodes import leave_out, why_left_out
from embodyflow.graph.validation import MULTI_AGENT_KEYS, ancestors, name_of
from embodyflow.graph.yaml_loader import Ref, read_workflow
from embodyflow.nodes.declarations import declared
from embodyflow.references import resolve

REFERENCES = {
    "generate": "generate",
    "compute_reward": "compute_reward",
    "compute_value": "compute_value",
    "compute_advantage": "compute_advantage",
    "compute_old_log_prob": "compute_old_log_prob",
    "compute_ref_log_prob": "compute_ref_log_prob",
    "train_actor": "train_actor",
    "train_critic": "train_critic",
    "dynamic_sampling": "dynamic_sampling",
    "embodied_sampling": "filter_groups",
    "embodied_local_rank_sampling": "filter_groups",
}
"""Functions of siiRL by their last name, and those of ``tasks``."""

TRANSPORT_FUNCTIONS = {"postprocess_sampling": "POSTPROCESS_SAMPLING", "data_rebalance": "DATA_REBALANCE"}
"""Functions of siiRL that only move rows, and the role of their nodes."""

RUN_KEYS = {
    "model.path": "policy.path",
    "rollout.n": "rollout.group_size",
    "rollout.temperature": "rollout.temperature",
    "rollout.tensor_model_parallel_size": "rollout.generation.tensor_parallel_size",
    "rollout.gpu_memory_utilization": "rollout.generation.gpu_memory_utilization",
}
"""Keys of a node's configuration in siiRL, and those of a run here."""

READ_KEYS = ("model_params", "uniform")
"""Keys of a node's configuration that the planner or a built-in function reads here."""


@dataclass
class Ported:
    """A ported file.

    Attributes:
        text: YAML of the pipeline file.
        changes: Differences from the given file, one line each.
        left: Decisions that a person must make, one line each.
        agents: Its agents; ``None`` if it has one.
    """

    text: str = ""
    changes: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    agents: PortedAgents | None = None


def port_workflow(path: str | Path, share_weights: bool = False) -> Ported:
    """Return the pipeline file for a workflow file of siiRL; it is not checked.

    Args:
        path: YAML or JSON file with ``dag_id`` and ``nodes``.
        share_weights: Whether agents that have weights of their own in siiRL share one policy here.

    Raises:
        ConfigError: The file cannot be read, or a setting of its agents has no counterpart.
    """
    content, dropped = read_workflow(path)
    ported = Ported()
    if (agents := port_agents(path, content["nodes"], share_weights)) is not None:
        content = {**content, "nodes": agents.specs}
        ported = Ported(changes=list(agents.changes), left=list(agents.left), agents=agents)
    ported.changes += [f"{key}: left out; it only holds values for aliases, which are written out" for key in dropped]
    specs = [_port_node(spec, index, ported) for index, spec in enumerate(content["nodes"])]
    for index, spec in enumerate(specs):
        if (reason := why_left_out(spec)) is not None:
            ported.changes.append(f"{name_of(spec, index)}: node left out; {reason}")
    specs = leave_out(specs)
    _place_sampling(specs, ported)
    specs = _leave_out_late_critic(specs, ported)
    _reconnect(specs, ported)
    if re.search("srpo|vjepa|v-jepa", f"{content['dag_id']} {content.get('description')}", re.IGNORECASE):
        ported.left.append(
            "reward: the graph rewards success; SRPO's progress reward is the node tasks:score_progress, as in "
            "algorithm=srpo with pipeline.name=embodied_srpo"
        )
    ported.text = yaml.dump({**content, "nodes": specs}, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return ported


def _port_node(spec: Any, index: int, ported: Ported) -> Any:
    if not isinstance(spec, Mapping):
        return spec  # the check of the graph reports it
    name, spec = name_of(spec, index), dict(spec)

    def change(key: str, value: Any, reason: str = "") -> None:
        ported.changes.append(f"{name}: {key}: {spec.get(key)} → {value}{reason}")
        spec[key] = value

    for key in ("filter_plugin", *MULTI_AGENT_KEYS):
        if key in spec and not spec[key]:
            ported.changes.append(f"{name}: {key}: left out; it says nothing")
            del spec[key]
    if spec.get("executable_ref", "") is None:
        del spec["executable_ref"]
    if "retry_limit" in spec:
        spec["retries"] = spec.pop("retry_limit")
        ported.changes.append(f"{name}: retry_limit → retries, which is acted on")
    if str(spec.get("node_type")).upper() in ("ENV_INTERACT", "CUSTOM"):
        change("node_type", str(NodeType.COMPUTE))
    _port_reference(name, spec, change, ported)
    # The place of dynamic sampling decides its function, and so its type and role.
    resamples = built_in_name(spec.get("executable_ref")) == "dynamic_sampling"
    for key, value in () if resamples else infer(spec).items():
        if key not in spec and value is not False:  # False is the default
            spec[key] = value if isinstance(value, bool) else str(value)
            ported.changes.append(f"{name}: {key}: inferred {spec[key]}")
    _port_config(name, spec, ported)
    return spec


def _port_reference(name: str, spec: dict[str, Any], change: Callable[..., None], ported: Ported) -> None:
    reference = spec.get("executable_ref")
    if not isinstance(reference, str) or not re.match(r"siirl[.:]", reference):
        return
    function = re.split(r"[.:]", reference)[-1]
    if function in TRANSPORT_FUNCTIONS:
        change("node_role", TRANSPORT_FUNCTIONS[function], f", the role of {reference}")
        del spec["executable_ref"]
    elif function in REFERENCES:
        change("executable_ref", f"tasks:{REFERENCES[function]}")
    else:
        ported.left.append(f"{name}: executable_ref={reference}: has no counterpart; name a function of your own")


def _port_config(name: str, spec: dict[str, Any], ported: Ported) -> None:
    """Leave out configuration that siiRL merges into a model's settings; built-in functions do not read it here."""
    config = spec.get("config")
    if built_in_name(spec.get("executable_ref")) is None or not isinstance(config, Mapping):
        return
    for key, value in config.items():
        if key not in READ_KEYS:
            hint = f"set {RUN_KEYS[key]} of the run" if key in RUN_KEYS else "look for its key with embodyflow config"
            shown = f"!Ref {value.path}" if isinstance(value, Ref) else value
            ported.left.append(f"{name}: config.{key}={shown}: left out, since settings belong to the run; {hint}")
    spec["config"] = {key: value for key, value in config.items() if key in READ_KEYS}
    if not spec["config"]:
        del spec["config"]


def _place_sampling(specs: list[Any], ported: Ported) -> None:
    """Choose the function of dynamic sampling by its place: new episodes have no advantages."""
    for spec, name, above in _with_ancestors(specs):
        if built_in_name(spec.get("executable_ref")) != "dynamic_sampling":
            continue
        if any(built_in_name(each.get("executable_ref")) == "compute_advantage" for each in above):
            kind = KINDS["filter_groups"]
            spec["executable_ref"] = "tasks:filter_groups"
            ported.changes.append(f"{name}: executable_ref: tasks:dynamic_sampling → tasks:filter_groups")
            ported.left.append(
                f"{name}: tasks:filter_groups drops groups and replaces none; to keep their number as siiRL does, put "
                "the node before the advantages with executable_ref=tasks:dynamic_sampling"
            )
        else:
            kind = KINDS["dynamic_sampling"]
        spec |= {"node_type": str(kind.node_type), "node_role": str(kind.node_role)}
        ported.changes.append(f"{name}: node_type and node_role: {kind.node_type} and {kind.node_role}")


def _leave_out_late_critic(specs: list[Any], ported: Ported) -> list[Any]:
    """Leave out a critic whose values come after the advantages: nothing reads them, and siiRL cannot run it either.

    There ``gae`` fails for lack of values, and with other estimators the critic's node gets no rows, as it is not the
    first child of its parent, which aborts every step. siiRL's next version of such a file has no critic.
    """
    graph = list(_with_ancestors(specs))
    critic = {spec["node_id"]: name for spec, name, _ in graph if _is_built_in(spec, "compute_value", "train_critic")}
    values = {spec["node_id"] for spec, _, _ in graph if _is_built_in(spec, "compute_value")}
    advantages = [(name, above) for spec, name, above in graph if _is_built_in(spec, "compute_advantage")]
    if not values or not advantages or any(each["node_id"] in values for _, above in advantages for each in above):
        return specs
    if not all(_is_built_in(spec) for spec in specs):
        ported.left.append(
            f"{advantages[0][0]}: comes before the values of {', '.join(sorted(values))}; put it after them for "
            "algorithm=ppo, or remove the nodes of the critic for algorithms without one"
        )
        return specs
    for name in critic.values():
        ported.changes.append(f"{name}: node left out; the advantages come before the critic's values and ignore them")
    return leave_out(specs, critic)


def _is_built_in(spec: Mapping[str, Any], *names: str) -> bool:
    """Return True if a node runs one of these functions of ``tasks``, or any of them if no name is given."""
    name = built_in_name(spec.get("executable_ref"))
    return name is not None and (not names or name in names)


def _reconnect(specs: list[Any], ported: Ported) -> None:
    """Move a node below the one that writes its columns, if that one is below all its present parents.

    If several write some of them, the node goes below the one that has most of them behind it.
    """
    for spec, name, above in _with_ancestors(specs):
        missing = _columns(spec, "__reads__") - _written(above)
        if not missing or not all(_is_built_in(each) for each in above):
            continue
        found = {}
        for other, writer, over in _with_ancestors(specs):
            is_below = {each["node_id"] for each in over} >= set(spec["dependencies"])
            if other is not spec and is_below and spec not in over and missing & _columns(other, "__writes__"):
                found[writer] = sorted(missing & _written([other, *over]))
        if found:
            best = max(found, key=lambda writer: len(found[writer]))
            before, spec["dependencies"] = ", ".join(spec["dependencies"]), [best]
            columns = ", ".join(found[best])
            ported.changes.append(f"{name}: dependencies: {before} → {best}, after which there are {columns}")


def _written(specs: Iterable[Mapping[str, Any]]) -> set[str]:
    return {column for each in specs for column in _columns(each, "__writes__")}


def _columns(spec: Mapping[str, Any], attribute: str) -> set[str]:
    name = built_in_name(spec.get("executable_ref"))
    return set() if name is None else set(declared(resolve(f"tasks:{name}"), attribute) or ())


def _with_ancestors(specs: list[Any]) -> Iterator[tuple[dict[str, Any], str, list[dict[str, Any]]]]:
    """Yield every node with its id and ancestors, as its graph is then; nothing for a graph with wrong edges."""
    for index, spec in enumerate(specs):
        try:
            by_id = {each["node_id"]: each for each in specs}
            parents = {name: each.setdefault("dependencies", []) for name, each in by_id.items()}
            above = [by_id[parent] for parent in ancestors(name_of(spec, index), parents)]
        except (KeyError, TypeError, AttributeError):
            return  # the check of the graph reports it
        yield spec, name_of(spec, index), above


class _Dumper(yaml.SafeDumper):
    """Dumper that writes aliases out and keeps ``!Ref``."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_representer(Ref, lambda dumper, ref: dumper.represent_scalar("!Ref", ref.path))
