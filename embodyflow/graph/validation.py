"""Find all problems of a graph before any process starts, and report them together.

Nodes arrive as mappings (*specs*) from Python, YAML and JSON alike, so that no problem hides another.
"""

import inspect
import re
import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any

from pydantic import ValidationError

from embodyflow.errors import ConfigError
from embodyflow.graph.built_in_functions import FUNCTIONS, infer, misplaced
from embodyflow.graph.node import Node, NodeType
from embodyflow.graph.node_config import columns_of_config, config_problems
from embodyflow.nodes.calling import bind
from embodyflow.nodes.declarations import declared
from embodyflow.references import reference_to, resolve

Spec = Mapping[str, Any]

NOT_INFERRED = {
    "executable_ref": "; it follows only from the roles " + ", ".join(dict.fromkeys(role for role, _ in FUNCTIONS)),
    "node_type": "; it follows only from a function of tasks; allowed are " + ", ".join(NodeType),
}

MULTI_AGENT_KEYS = ("agent_group", "agent_options", "user_options")

_imports_functions = ContextVar("_imports_functions", default=True)


@contextmanager
def skip_function_imports() -> Iterator[None]:
    """Check graphs built in this context without importing their nodes' functions.

    Built-in graphs use this, since a test checks their functions. Importing those imports torch, which takes seconds
    that the flow's process would lose before it starts a worker.
    """
    before = _imports_functions.set(False)
    try:
        yield
    finally:
        _imports_functions.reset(before)


@dataclass(frozen=True)
class Problem:
    """One problem of a graph.

    Attributes:
        node_id: Node with the problem; ``nodes[i]`` if it has no id, empty for the graph as a whole.
        message: Key, its value and what is allowed.
    """

    node_id: str
    message: str

    def __str__(self) -> str:
        return f"node {self.node_id!r}: {self.message}" if self.node_id else self.message


class GraphError(ConfigError):
    """A graph has problems; the message has one line each.

    Args:
        problems: All problems.
        source: Id or file of the pipeline.
    """

    def __init__(self, problems: Sequence[Problem], source: str) -> None:
        super().__init__("\n".join(f"{source}: {problem}" for problem in problems))
        self.problems = tuple(problems)


def check(specs: Sequence[Any]) -> tuple[list[Node], list[Problem]]:
    """Turn specs into nodes and find all problems.

    This imports the nodes' functions, except within :func:`skip_function_imports`.

    Args:
        specs: Mappings with the keys of :class:`~embodyflow.graph.node.Node`; ``executable_ref`` may be a callable.

    Returns:
        The valid nodes and the problems. Without problems the nodes form a valid graph.
    """
    if not specs:
        return [], [Problem("", "nodes: must not be empty")]
    functions: dict[str, Callable[..., Any]] = {}
    problems: list[Problem] = []
    specs = [infer(spec) if isinstance(spec, Mapping) else spec for spec in specs]
    if _imports_functions.get():
        specs, functions, problems = _find_functions(specs)
    nodes, unreadable = parse_nodes(specs)
    structure = structure_problems(specs)
    problems += [each for each in unreadable if not _follows(each, problems)] + structure
    if not unreadable and not structure:
        by_id = {node.node_id: node for node in nodes}
        problems += [Problem(node_id, message) for node_id, message in misplaced(by_id)]
        problems += [Problem(node_id, message) for node_id, message in config_problems(by_id, functions)]
        problems += _unwritten_columns(by_id, functions)
    return nodes, problems


def _follows(problem: Problem, found: Sequence[Problem]) -> bool:
    """Return True if a node's missing type only results from the misspelt name of a built-in function."""
    is_type = problem.message.startswith("node_type: is missing")
    misspelt = (each for each in found if each.message.startswith("executable_ref='tasks"))
    return is_type and any(each.node_id == problem.node_id for each in misspelt)


def parse_nodes(specs: Sequence[Any]) -> tuple[list[Node], list[Problem]]:
    """Turn specs into nodes without importing functions; nodes with a problem are left out."""
    nodes: list[Node] = []
    problems: list[Problem] = []
    for index, spec in enumerate(specs):
        name = name_of(spec, index)
        if not isinstance(spec, Mapping):
            problems.append(Problem(name, f"must be a mapping, not {reprlib.repr(spec)}"))
            continue
        try:
            nodes.append(Node.model_validate(dict(spec)))
        except ValidationError as error:
            problems += [Problem(name, _explain(detail)) for detail in error.errors(include_url=False)]
    return nodes, problems


def _find_functions(specs: Sequence[Any]) -> tuple[list[Any], dict[str, Callable[..., Any]], list[Problem]]:
    """Replace each function by its name; return the new specs, the functions by node and the problems."""
    named: list[Any] = []
    functions: dict[str, Callable[..., Any]] = {}
    problems: list[Problem] = []
    for index, spec in enumerate(specs):
        function = spec.get("executable_ref") if isinstance(spec, Mapping) else None
        if not isinstance(function, str) and not callable(function):
            named.append(spec)  # parse_nodes reports a missing function
            continue
        name = name_of(spec, index)
        try:
            if isinstance(function, str) and re.match(r"siirl[.:]", function):
                raise ImportError("is a function of siiRL; name its counterpart, or run embodyflow port on the file")
            reference = reference_to(function)
            functions[name] = _resolve_function(reference)
        except (ImportError, TypeError, ValueError) as error:
            problems.append(Problem(name, f"executable_ref={reprlib.repr(function)}: {error}"))
            reference = "unknown:unknown"  # reported here once; parse_nodes still checks the other keys
        named.append({**spec, "executable_ref": reference})
    return named, functions, problems


def _resolve_function(reference: str) -> Callable[..., Any]:
    """Return the function; refuse one that does not accept ``batch``, ``config``, ``worker`` and ``call``."""
    function = resolve(reference)
    if not callable(function):
        raise TypeError(f"{reprlib.repr(function)} is not callable")
    if next(iter(inspect.signature(function).parameters), None) == "self":
        raise TypeError("is a method of an instance; make it a static method or a function")
    try:
        bind(function, None, {}, worker=None, call=None)
    except TypeError as error:
        raise TypeError(f"must accept (batch, config=None, **kwargs): {error}") from error
    return function


def _explain(detail: Mapping[str, Any]) -> str:
    path = detail["loc"]
    if path[0] == "config":  # pydantic inserts a type after each key of a JSON value
        path = (path[0], *path[1::2])
    key = ".".join(map(str, path))
    if detail["type"] == "missing":
        return f"{key}: is missing{NOT_INFERRED.get(key, '')}"
    if key in MULTI_AGENT_KEYS:
        return f"{key}: belongs to siiRL's multi-agent graphs, which embodyflow port turns into a workflow"
    if detail["type"] == "extra_forbidden":
        return f"{key}: unknown key; allowed are {', '.join(Node.model_fields)}"
    reason = detail["msg"].removeprefix("Value error, ").replace("Input should", "should")
    return f"{key}={reprlib.repr(detail['input'])}: {reason}"


def structure_problems(specs: Sequence[Any]) -> list[Problem]:
    """Find duplicate ids, unknown dependencies and cycles."""
    problems: list[Problem] = []
    names = [name_of(spec, index) for index, spec in enumerate(specs)]
    for name, count in Counter(names).items():
        if count > 1:
            problems.append(Problem(name, f"node_id: duplicate, used {count} times"))
    parents = {name: _dependencies(spec) for name, spec in zip(names, specs, strict=True)}
    for name, dependencies in parents.items():
        for parent in dependencies:
            if parent not in parents:
                others = ", ".join(other for other in parents if other != name)
                hint = f"allowed are {others}" if others else "the graph has no other node"
                problems.append(Problem(name, f"dependencies: no node {parent!r}; {hint}"))
        for parent, count in Counter(dependencies).items():
            if count > 1:
                problems.append(Problem(name, f"dependencies: {parent!r} is named {count} times"))
    return problems + _cycles(parents)


def _cycles(parents: Mapping[str, Sequence[str]]) -> list[Problem]:
    """Find disjoint cycles: each one is removed from the graph before the search for the next."""
    problems: list[Problem] = []
    while True:
        try:
            TopologicalSorter(parents).prepare()
            return problems
        except CycleError as error:
            cycle = error.args[1]
            problems.append(Problem(cycle[0], f"dependencies: cycle {' → '.join(cycle)}"))
            parents = {name: dependencies for name, dependencies in parents.items() if name not in cycle}


def _unwritten_columns(nodes: Mapping[str, Node], functions: Mapping[str, Callable[..., Any]]) -> list[Problem]:
    """Find columns that a node reads and no ancestor writes, in a graph without other problems."""
    writes = {name: _columns(node.writes, functions.get(name), "__writes__") for name, node in nodes.items()}
    parents = {name: node.dependencies for name, node in nodes.items()}
    problems: list[Problem] = []
    for name, node in nodes.items():
        reads = (_columns(node.reads, functions.get(name), "__reads__") or set()) | columns_of_config(node)
        above = [writes[ancestor] for ancestor in ancestors(name, parents)]
        if not reads or None in above:
            continue  # an ancestor that declares nothing may write anything
        written = {column for columns in above for column in columns or ()}
        for column in sorted(reads - written):
            others = [other for other, columns in writes.items() if column in (columns or ()) and other != name]
            hint = f"; written by {', '.join(others)}" if others else ""
            problems.append(Problem(name, f"reads {column!r}, which no ancestor writes{hint}"))
    return problems


def _columns(of_node: Iterable[str] | None, function: Any, attribute: str) -> set[str] | None:
    columns = of_node if of_node is not None else declared(function, attribute)
    return None if columns is None else set(columns)


def ancestors(name: str, parents: Mapping[str, Sequence[str]]) -> list[str]:
    """Return every node whose output can reach ``name``, nearest first.

    Args:
        name: Id of a node.
        parents: Parents of every node, without cycles.
    """
    found = dict.fromkeys(parents[name])
    waiting = list(found)
    for ancestor in waiting:
        new = [parent for parent in parents[ancestor] if parent not in found]
        found.update(dict.fromkeys(new))
        waiting.extend(new)
    return list(found)


def name_of(spec: Any, index: int) -> str:
    """Return the node's id, or its index as ``nodes[i]`` if the id is missing or not a string."""
    name = spec.get("node_id") if isinstance(spec, Mapping) else None
    return name if isinstance(name, str) and name else f"nodes[{index}]"


def _dependencies(spec: Any) -> tuple[str, ...]:
    """Return the valid dependencies of a spec; :func:`parse_nodes` reports the others."""
    dependencies = spec.get("dependencies", ()) if isinstance(spec, Mapping) else ()
    if not isinstance(dependencies, list | tuple):
        return ()
    return tuple(parent for parent in dependencies if isinstance(parent, str))
