"""Agents of a workflow file of siiRL: a ring of agents, and one node for the nodes that each of them has there.

An actor of a group above 0 has weights of its own, unless ``share_instance`` names a group to share with.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from embodyflow.errors import ConfigError
from embodyflow.graph.validation import MULTI_AGENT_KEYS, name_of
from embodyflow.graph.yaml_loader import refs_in

OWN_CRITIC = (
    "weights of its own; one critic judges all agents, so write agent_options: {share_instance: 0}, or share all "
    "weights by --share-weights"
)
REASONS = {
    "agent_group": OWN_CRITIC,
    "user_options": "read by a function of your own; give its settings in the node's config",
    "agent_options.train_cycle": "agents that take turns in training; that needs weights of their own",
}
"""Settings of agents without a counterpart, and why."""

MEMBER_OPTIONS = ("obs_with_env", "process_path", "pre_process_kwargs", "post_process_kwargs", "env_path")
"""Options of a node that plays an agent."""

SHARING_OPTIONS = ("share_instance", "train_cycle")
"""Options of other nodes."""

_DEFAULTS = ("job: agent", "algorithm: ppo", "policy: causal_lm", "rollout: conversations", "env: null", "data: verl")


@dataclass
class PortedAgents:
    """The agents of a file.

    Attributes:
        specs: Nodes of the graph, in which one node plays all agents and each model has one node of a kind.
        members: Section ``rollout.agent.ring.members``.
        environment: Reference ``module:Class``, or ``None``.
        weights: Value of ``rollout.agent.weights``: ``own`` or ``shared``.
        train_cycle: Value of ``rollout.agent.train_cycle``.
        changes: Differences from the given file, one line each.
        left: Decisions that a person must make, one line each.
    """

    specs: list[dict[str, Any]] = field(default_factory=list)
    members: dict[str, dict[str, Any]] = field(default_factory=dict)
    environment: str | None = None
    weights: str = "shared"
    train_cycle: int | None = None
    changes: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def experiment(self, name: str, pipeline: str, source: str) -> str:
        """Return the experiment file with the settings of the agents.

        Args:
            name: Name of the experiment.
            pipeline: Path of the pipeline file.
            source: Name of siiRL's file.
        """
        reward = "reward: by_source" if self.environment is None else "reward: workflow"
        ring = {"members": self.members, "environment": self.environment, "trained_turns": "last"}
        section = {
            "experiment": name,
            "iterations": 100,
            "pipeline": {"yaml": pipeline},
            "algorithm": {"advantage": "marft"},
            "rollout": {
                "num_groups": 64,
                "max_prompt_tokens": 1024,
                "max_response_tokens": 8192,
                "agent": {"max_turns": 1, **self._own_weights, "ring": _escaped(ring)},
            },
            "trainer": {"learning_rate": 1.0e-6, "epochs": 1, "num_minibatches": 1},
            "warm_start": None,
            "evaluation": {"num_prompts": 64, "num_samples": 1, "num_shown": 12, "every": None},
        }
        weights = "share one policy" if self.weights == "shared" else "have weights of their own"
        lines = [
            "# @package _global_",
            f"# The agents {', '.join(self.members)} of siiRL's {source}, which {weights}.",
            "defaults:",
            *(f"  - override /{each}" for each in (*_DEFAULTS, reward)),
            "",
        ]
        text = yaml.safe_dump(section, sort_keys=False, allow_unicode=True, width=120)
        return "\n".join(lines) + "\n" + text

    @property
    def merged(self) -> str:
        """Why one node is enough for the nodes that the agents have."""
        return "all agents share one policy" if self.weights == "shared" else "one node serves all agents' policies"

    @property
    def _own_weights(self) -> dict[str, Any]:
        if self.weights == "shared":
            return {}
        return {"weights": self.weights, "train_cycle": self.train_cycle}


def port_agents(path: str | Path, specs: list[Any], share_weights: bool) -> PortedAgents | None:
    """Return the agents of a file; ``None`` for a file of one agent.

    Args:
        path: Path of the file, for messages.
        specs: Its nodes.
        share_weights: Whether agents that have weights of their own in siiRL share one policy here.

    Raises:
        ConfigError: A setting has no counterpart; one line each.
    """
    if not any(_settings_of(spec) for spec in specs) or not all(_is_node(spec) for spec in specs):
        return None  # the check of the graph reports what is no node
    _refuse(path, specs, share_weights)
    nodes = [dict(spec) for spec in specs]
    ring = _ring_of(path, nodes)
    ported = PortedAgents()
    if not share_weights and any(_is_own(spec) and _role(spec) == "ACTOR" for spec in nodes):
        ported.weights = "own"
        _check_trained(path, nodes, ring)
        ported.train_cycle = _train_cycle(path, nodes)
    for spec in ring:
        _add_member(ported, path, spec, is_last=spec is ring[-1])
    _merge(ported, nodes, ring)
    ported.left.append(
        "rollout.agent.max_turns, rollout.agent.ring.trained_turns, share_reward: settings of siiRL's run, "
        "rollout.multi_turn.max_assistant_turns, use_all_traj and algorithm.share_reward_in_agent; the experiment has "
        "siiRL's defaults"
    )
    ported.left.append("policy and data: choose them on the command line, such as policy.path=… data.train=[…]")
    return ported


def _is_node(spec: Any) -> bool:
    return isinstance(spec, Mapping) and isinstance(spec.get("node_id"), str)


def _settings_of(spec: Any) -> list[str]:
    """Return the settings of agents that a node has, those of ``agent_options`` by their full names."""
    if not isinstance(spec, Mapping):
        return []
    options = spec.get("agent_options")
    inside = [f"agent_options.{key}" for key in options] if isinstance(options, Mapping) else []
    others = [key for key in MULTI_AGENT_KEYS if spec.get(key) and not (key == "agent_options" and inside)]
    return [*others, *inside]


def _refuse(path: str | Path, specs: list[Any], share_weights: bool) -> None:
    """Raise the settings that have no counterpart, each with the nodes that have it."""
    found: dict[str, list[str]] = {}
    has_own = any(_is_own(spec) and _role(spec) == "ACTOR" for spec in specs)
    for index, spec in enumerate(specs):
        for setting in _settings_of(spec):
            if not _has_counterpart(spec, setting, share_weights, has_own):
                found.setdefault(setting, []).append(name_of(spec, index))
    if found:
        lines = [
            f"{path}: {setting} of {', '.join(map(repr, names))}: {REASONS.get(setting, 'has no counterpart')}"
            for setting, names in found.items()
        ]
        raise ConfigError("\n".join([f"{path}: settings of agents have no counterpart", *lines]))


def _has_counterpart(spec: Mapping[str, Any], setting: str, share_weights: bool, has_own: bool) -> bool:
    key, is_played = setting.removeprefix("agent_options."), _role(spec) == "ROLLOUT"
    if setting == "agent_group":
        has_policy = has_own and _role(spec) in ("ACTOR", "REFERENCE")
        return isinstance(spec[setting], int) and (not _is_own(spec) or has_policy or share_weights)
    if key == "train_cycle":
        return share_weights or (has_own and _role(spec) == "ACTOR")
    return setting.startswith("agent_options.") and key in (MEMBER_OPTIONS if is_played else SHARING_OPTIONS)


def _role(spec: Mapping[str, Any]) -> str:
    return str(spec.get("node_role")).upper()


def _is_own(spec: Mapping[str, Any]) -> bool:
    """Return True if a node's model belongs to a group above 0 and shares no other group's."""
    options = spec.get("agent_options")
    shares = isinstance(options, Mapping) and isinstance(options.get("share_instance"), int)
    return str(spec.get("node_type")).upper() == "MODEL_TRAIN" and bool(spec.get("agent_group")) and not shares


def _check_trained(path: str | Path, nodes: list[dict[str, Any]], ring: list[dict[str, Any]]) -> None:
    """Check that each agent of the ring is a group, in this order, whose actor trains weights of its own."""
    trains = [spec for spec in nodes if _role(spec) == "ACTOR" and not spec.get("only_forward_compute")]
    groups = {spec.get("agent_group") or 0 for spec in trains if _is_own(spec) or not spec.get("agent_group")}
    for place, spec in enumerate(ring):
        group = spec.get("agent_group") or 0
        if group != place:
            raise ConfigError(
                f"{path}: node {spec['node_id']!r}: agent_group={group}: agents with weights of their own are groups "
                f"in the order in which they write; allowed is {place}"
            )
        if group not in groups:
            raise ConfigError(
                f"{path}: node {spec['node_id']!r}: agent_group={group} has no actor that trains weights of its own, "
                "while another agent has one; allowed are own weights of all agents, or of none by --share-weights"
            )


def _train_cycle(path: str | Path, nodes: list[dict[str, Any]]) -> int | None:
    """Return the iterations of an agent's turn in training; ``None`` if all train in each."""
    cycles = {spec["node_id"]: (spec.get("agent_options") or {}).get("train_cycle") for spec in nodes}
    given = {name: cycle for name, cycle in cycles.items() if cycle is not None}
    wrong = [name for name, cycle in given.items() if type(cycle) is not int or cycle < 1]
    differing = [name for name, cycle in given.items() if cycle != next(iter(given.values()))]
    for name in wrong + differing:
        raise ConfigError(
            f"{path}: node {name!r}: train_cycle={given[name]!r}: must be a number of iterations from 1, the same for "
            "all agents"
        )
    return next(iter(given.values()), None)


def _ring_of(path: str | Path, nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the nodes that play agents, in the order in which they write."""
    played = {spec["node_id"]: spec for spec in nodes if _role(spec) == "ROLLOUT"}
    ring: list[dict[str, Any]] = []
    for spec in nodes:
        if spec["node_id"] not in played:
            continue
        expected = [ring[-1]["node_id"]] if ring else []
        if list(spec.get("dependencies") or []) != expected:
            raise ConfigError(
                f"{path}: node {spec['node_id']!r}: dependencies={spec.get('dependencies')}: agents must form a chain "
                f"from the root; allowed is {expected}"
            )
        ring.append(spec)
    if not ring:
        raise ConfigError(f"{path}: agent_options: no node has the role ROLLOUT, which plays an agent")
    return ring


def _add_member(ported: PortedAgents, path: str | Path, spec: Mapping[str, Any], is_last: bool) -> None:
    node_id, options = spec["node_id"], spec.get("agent_options") or {}
    if (ref := next(refs_in(options), None)) is not None:
        raise ConfigError(f"{path}: node {node_id!r}: agent_options: !Ref {ref.path}: write the value out")
    name = "".join(letter if letter.isalnum() else "_" for letter in node_id.removeprefix("rollout_"))
    if name in ported.members:
        raise ConfigError(f"{path}: node {node_id!r}: names the agent {name} again; each agent needs a name of its own")
    process = options.get("process_path")
    member: dict[str, Any] = {}
    for kind in ("pre_process", "post_process"):
        if process is not None:
            member[kind] = f"{_module_of(process)}:{kind}"
        if options.get(f"{kind}_kwargs"):
            member[f"{kind}_kwargs"] = dict(options[f"{kind}_kwargs"])
    if options.get("obs_with_env") and process is not None:
        member["observes"] = True
    ported.members[name] = member
    ported.changes.append(f"{node_id}: the agent {name} of rollout.agent.ring")
    paths = options.get("env_path") or []
    if paths and (not is_last or len(paths) > 1):
        raise ConfigError(f"{path}: node {node_id!r}: env_path={paths}: allowed is one environment, of the last agent")
    if paths:
        file, _, kind = paths[0].partition(":")
        ported.environment = f"{_module_of(file)}:{kind}"
    for file in filter(None, (process, *(each.partition(":")[0] for each in paths))):
        note = f"{file}: its module {_module_of(file)} must be importable: in the current folder, or installed"
        if note not in ported.left:
            ported.left.append(note)


def _merge(ported: PortedAgents, nodes: list[dict[str, Any]], ring: list[dict[str, Any]]) -> None:
    """Keep the first node of each kind, and let the others' children depend on it."""
    first: dict[tuple[str, ...], dict[str, Any]] = {}
    kept_for: dict[str, str] = {}
    played = [spec["node_id"] for spec in ring]
    if all(spec["node_id"] != "rollout" for spec in nodes):
        kept_for[played[0]] = ring[0]["node_id"] = "rollout"
    for spec in nodes:
        kind = ("ring",) if any(spec is each for each in ring) else _kind_of(spec)
        kept = first.setdefault(kind, spec)
        kept_for[spec["node_id"]] = kept["node_id"]
        if kept is not spec:
            ported.changes.append(f"{spec['node_id']}: merged into {kept['node_id']}; {ported.merged}")
            if spec.get("config") and spec["config"] != kept.get("config"):
                ported.left.append(f"{spec['node_id']}: config differs from that of {kept['node_id']}, which is kept")
    for spec in first.values():
        own = spec["node_id"]
        parents = dict.fromkeys(kept_for.get(each, each) for each in spec.get("dependencies") or [])
        spec["dependencies"] = [each for each in parents if each != own]
        _drop_settings(ported, spec)
    ported.specs = list(first.values())


def _kind_of(spec: Mapping[str, Any]) -> tuple[str, ...]:
    role = _role(spec)
    if role in ("NONE", "DEFAULT"):
        return ("node", spec["node_id"])  # a function of the user's own may do something else for each agent
    return role, str(spec.get("only_forward_compute", False)), str(spec.get("executable_ref"))


def _drop_settings(ported: PortedAgents, spec: dict[str, Any]) -> None:
    options = spec.get("agent_options") or {}
    if "train_cycle" in options:
        cycle = options["train_cycle"]
        fate = "left out; one policy has no turns to take"
        if ported.weights == "own":
            fate = "set as rollout.agent.train_cycle"
        ported.changes.append(f"{spec['node_id']}: train_cycle: {cycle} {fate}")
    for key in MULTI_AGENT_KEYS:
        spec.pop(key, None)


def _module_of(file: str) -> str:
    return file.removesuffix(".py").strip("./").replace("/", ".")


def _escaped(value: Any) -> Any:
    """Return a value whose texts mean the same in a configuration, where ``${`` begins a reference."""
    if isinstance(value, str):
        return value.replace("${", "\\${")
    if isinstance(value, Mapping):
        return {key: _escaped(each) for key, each in value.items()}
    return [_escaped(each) for each in value] if isinstance(value, Iterable) else value
