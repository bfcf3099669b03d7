"""A graph written in YAML (or JSON, which is YAML too).

``!Ref global_config.a.b`` stands for the value found there, anywhere inside a node.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from embodyflow.errors import ConfigError
from pipelines.graph import TaskGraph, build_graph
from pipelines.node import Node


class PipelineFile(BaseModel):
    """The top level of a pipeline file; ``schema.json`` is made from it."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    dag_id: str
    """The pipeline's name."""
    description: str = ""
    """For people."""
    global_config: dict[str, Any] = {}
    """Values that nodes refer to with `!Ref global_config.a.b`."""
    nodes: list[Node]
    """The nodes, in any order."""


@dataclass(frozen=True)
class _Ref:
    path: str


class _Loader(yaml.SafeLoader):
    """Safe YAML with ``!Ref``, in which a key given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)

    def construct_ref(self, node: yaml.Node) -> _Ref:
        if not isinstance(node, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(None, None, "!Ref takes a path", node.start_mark)
        return _Ref(node.value)


_Loader.add_constructor("!Ref", _Loader.construct_ref)


def load_yaml(path: str | Path) -> TaskGraph:
    """Read a pipeline file.

    Args:
        path: keys as in ``pipelines/schema.json``.

    Raises:
        ConfigError: the file cannot be read or is not of this form; the message names file, node and key.
        GraphError: its nodes do not make a graph; one line per problem.
    """
    content = _read(path)
    global_config = content.get("global_config") or {}
    specs = []
    for index, spec in enumerate(content["nodes"]):
        name = spec.get("node_id", f"nodes[{index}]") if isinstance(spec, Mapping) else f"nodes[{index}]"
        specs.append(_substitute(spec, global_config, f"{path}: node {name!r}"))
    return build_graph(specs, content["dag_id"], content.get("description", ""), source=str(path))


def _read(path: str | Path) -> dict[str, Any]:
    """Return the file's mapping, its top-level keys checked; the nodes are left for the graph's checks."""
    try:
        content = yaml.load(Path(path).read_text(encoding="utf-8"), _Loader)  # a subclass of SafeLoader
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: must be a mapping with the keys {', '.join(PipelineFile.model_fields)}")
    if not isinstance(content.get("nodes"), list):
        raise ConfigError(f"{path}: nodes: must be a list of nodes")
    try:
        PipelineFile.model_validate({**content, "nodes": []})
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in detail["loc"])
        allowed = ", ".join(PipelineFile.model_fields)
        raise ConfigError(f"{path}: {key}: {detail['msg']}; the keys are {allowed}") from error
    return content


def _substitute(value: Any, global_config: Mapping[str, Any], where: str) -> Any:
    """Return ``value`` with every ``!Ref`` in it replaced; ``where`` says for messages how it was reached."""
    if isinstance(value, _Ref):
        return _look_up(value.path, global_config, where)
    if isinstance(value, dict):
        return {key: _substitute(item, global_config, f"{where}: {key}") for key, item in value.items()}
    if isinstance(value, list):
        return [_substitute(item, global_config, f"{where}[{index}]") for index, item in enumerate(value)]
    return value


def _look_up(path: str, global_config: Mapping[str, Any], where: str) -> Any:
    root, *keys = path.split(".")
    if root != "global_config" or not keys:
        raise ConfigError(f"{where}: !Ref {path}: a path must begin with 'global_config.'")
    value: Any = global_config
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            there = (
                f"there are {', '.join(map(str, value))}" if isinstance(value, dict) and value else "nothing is there"
            )
            raise ConfigError(f"{where}: !Ref {path}: no key {key!r}; {there}")
        value = value[key]
    if value is None or isinstance(value, _Ref):
        raise ConfigError(f"{where}: !Ref {path}: must lead to a value, and leads to {value!r}")
    return deepcopy(value)
