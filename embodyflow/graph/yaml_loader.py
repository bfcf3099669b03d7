"""Graphs written in YAML, or in JSON, which is YAML too.

``!Ref global_config.a.b`` stands for the value at that path, anywhere inside a node. A top-level key of another name
may hold values for aliases, as in siiRL's files; it is no part of the graph.
"""

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from embodyflow.errors import ConfigError
from embodyflow.graph.graph import TaskGraph
from embodyflow.graph.node import Node
from embodyflow.graph.siirl.transport_nodes import leave_out
from embodyflow.graph.validation import GraphError, Problem, check, name_of


class PipelineFile(BaseModel):
    """The top level of a pipeline file, from which ``schema.json`` is generated."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    dag_id: str
    """Name of the pipeline."""
    description: str = ""
    """Text for readers."""
    global_config: dict[str, Any] = {}
    """Values that nodes reference with `!Ref global_config.a.b`."""
    nodes: list[Node]
    """Nodes in any order."""


@dataclass(frozen=True)
class Ref:
    """The path that a ``!Ref`` names."""

    path: str


class _Loader(yaml.SafeLoader):
    """Loader of safe YAML with ``!Ref`` that refuses duplicate keys and recursive aliases.

    Attributes:
        anchors_at: Positions of the anchors in the text.
        anchored_keys: Top-level keys whose values have an anchor, themselves or inside.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.anchors_at: list[int] = []
        self.anchored_keys: set[str] = set()

    def construct_document(self, node: yaml.Node) -> Any:
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            if any(key.end_mark.index <= index <= value.end_mark.index for index in self.anchors_at):
                self.anchored_keys.add(key.value)
        return super().construct_document(node)

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            alias = self.peek_event()
            named = self.anchors.get(alias.anchor)
            if named is not None and named.end_mark is None:  # inside the anchored value
                reason = f"alias {alias.anchor!r} refers to a value that contains it"
                raise yaml.composer.ComposerError(None, None, reason, alias.start_mark)
        elif (event := self.peek_event()).anchor is not None:
            self.anchors_at.append(event.start_mark.index)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)

    def construct_ref(self, node: yaml.Node) -> Ref:
        if not isinstance(node, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(None, None, "!Ref takes a path", node.start_mark)
        return Ref(node.value)


_Loader.add_constructor("!Ref", _Loader.construct_ref)


def load_yaml(path: str | Path) -> TaskGraph:
    """Read a pipeline file.

    Args:
        path: Path of a file that follows ``embodyflow/graph/schema.json``.

    Raises:
        ConfigError: The file cannot be read or does not have this form; the message names file and key.
        GraphError: The graph has problems, one line each.
    """
    content, _ = read_workflow(path)
    refs = _Refs(content.get("global_config") or {})
    specs = [refs.replace(spec, name_of(spec, index)) for index, spec in enumerate(leave_out(content["nodes"]))]
    nodes, others = check(specs)
    problems = refs.problems + [problem for problem in others if not refs.explains(problem)]
    if problems:
        raise GraphError(problems, str(path))
    return TaskGraph.of(nodes, content["dag_id"], content.get("description", ""))


def read_workflow(path: str | Path) -> tuple[dict[str, Any], list[str]]:
    """Return a file's mapping with unresolved references, and the top-level keys left out of it.

    The mapping's own keys are checked; its nodes are not.

    Args:
        path: Path of a YAML or JSON file.

    Raises:
        ConfigError: The file cannot be read or does not have this form; the message names file and key.
    """
    try:
        loader = _Loader(Path(path).read_text(encoding="utf-8"))  # a subclass of SafeLoader
        content = loader.get_single_data()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: is not YAML: {' '.join(str(error).split())}") from error
    except ValueError as error:  # a value that only looks like a date, or a number of thousands of digits
        raise ConfigError(f"{path}: has a value that cannot be read; write text in quotes: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: is nested too deeply; allowed are some hundred levels") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: must be a mapping with the keys {', '.join(PipelineFile.model_fields)}")
    if not isinstance(content.get("nodes"), list):
        raise ConfigError(f"{path}: nodes: must be a list of nodes")
    try:
        only_anchors = loader.anchored_keys - PipelineFile.model_fields.keys()
        content = {key: value for key, value in content.items() if key not in only_anchors}
        PipelineFile.model_validate({**content, "nodes": []})
    except ValidationError as error:
        raise ConfigError(f"{path}: {_explain(error.errors(include_url=False)[0])}") from error
    return content, sorted(only_anchors)


def _explain(detail: Mapping[str, Any]) -> str:
    *path, last = map(str, detail["loc"])
    if last == "[key]":
        return f"{'.'.join(path[:-1])}: key {path[-1]}: must be a string; write it in quotes"
    allowed = f"; the keys are {', '.join(PipelineFile.model_fields)}" if not path else ""
    return f"{'.'.join([*path, last])}: {detail['msg']}{allowed}"


class _Refs:
    """Replace every ``!Ref`` by the value at its path.

    Args:
        global_config: Mapping that the paths lead into.

    Attributes:
        problems: Problems of references that cannot be resolved; ``None`` replaces those.
    """

    def __init__(self, global_config: Mapping[str, Any]) -> None:
        self._global_config = global_config
        self.problems: list[Problem] = []

    def replace(self, value: Any, node_id: str, place: str = "") -> Any:
        """Return a part of a node's spec with references replaced; messages name its path ``place``."""
        if isinstance(value, Ref):
            try:
                return _look_up(value.path, self._global_config)
            except LookupError as error:
                self.problems.append(Problem(node_id, f"{place}!Ref {value.path}: {error.args[0]}"))
                return None
        if isinstance(value, dict):
            return {key: self.replace(item, node_id, f"{place}{key}: ") for key, item in value.items()}
        if isinstance(value, list):
            at = place.removesuffix(": ")
            return [self.replace(item, node_id, f"{at}[{index}]: ") for index, item in enumerate(value)]
        return value

    def explains(self, problem: Problem) -> bool:
        """Return True if a problem only results from an unresolved reference."""
        return "=None: " in problem.message and any(_key_of(problem) == _key_of(known) for known in self.problems)


def _key_of(problem: Problem) -> tuple[str, str]:
    """Return the node and the key that a problem is about."""
    return problem.node_id, re.split(r"[^\w]", problem.message)[0]


def _look_up(path: str, global_config: Mapping[str, Any]) -> Any:
    """Return a copy of the value at a path.

    Raises:
        LookupError: The path does not lead to a value.
    """
    root, *keys = path.split(".")
    if root != "global_config" or not keys:
        raise LookupError("a path must begin with 'global_config.'")
    value: Any = global_config
    for depth, key in enumerate(keys):
        if isinstance(value, list):
            raise LookupError(f"{'.'.join([root, *keys[:depth]])} is a list; a path must lead through mappings")
        if not isinstance(value, dict) or key not in value:
            raise LookupError(f"no key {key!r}; {_keys_of(value, key)}")
        value = value[key]
    if value is None or isinstance(value, Ref):
        raise LookupError(f"must lead to a value, not to {value!r}")
    if (inner := next(refs_in(value), None)) is not None:
        raise LookupError(f"must lead to a value without references, not to one with !Ref {inner.path}")
    return deepcopy(value)


def _keys_of(value: Any, missing: str) -> str:
    if not isinstance(value, dict) or not value:
        return "there are no keys"
    if missing in map(str, value):
        return f"key {missing} is not a string; write it in quotes"
    return f"allowed are {', '.join(map(str, value))}"


def refs_in(value: Any) -> Iterator[Ref]:
    """Yield the references in a value."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from refs_in(item)
