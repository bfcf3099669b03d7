"""Everything that can be wrong with a graph, found before a process is started and told in one report.

Nodes arrive as mappings (*specs*), from Python, YAML or JSON alike, so that one mistake hides no other.
"""

import inspect
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
from embodyflow.graph.node import Node
from embodyflow.nodes.calling import bind
from embodyflow.nodes.declarations import declared
from embodyflow.references import reference_to, resolve

Spec = Mapping[str, Any]

_imports_functions = ContextVar("_imports_functions", default=True)


@contextmanager
def functions_on_trust() -> Iterator[None]:
    """Check the graphs built within without importing their nodes' functions, named by ``"module:function"``.

    For built-in graphs, whose functions a test has looked at: they import torch, which takes seconds that the flow's
    process needs not spend before it can start a worker.
    """
    before = _imports_functions.set(False)
    try:
        yield
    finally:
        _imports_functions.reset(before)


@dataclass(frozen=True)
class Problem:
    """One mistake.

    Attributes:
        node_id: the node that has it; ``nodes[i]`` where it has no id, empty for the graph as a whole.
        message: which key, what it holds and what is allowed.
    """

    node_id: str
    message: str

    def __str__(self) -> str:
        return f"node {self.node_id!r}: {self.message}" if self.node_id else self.message


class GraphError(ConfigError):
    """A graph is wrong; one line per problem.

    Args:
        problems: all of them.
        source: the pipeline's id or file.
    """

    def __init__(self, problems: Sequence[Problem], source: str) -> None:
        super().__init__("\n".join(f"{source}: {problem}" for problem in problems))
        self.problems = tuple(problems)


def check(specs: Sequence[Any]) -> tuple[list[Node], list[Problem]]:
    """Turn specs into nodes and find everything that is wrong with them.

    The nodes' functions are imported, unless they are taken on trust (:func:`functions_on_trust`).

    Args:
        specs: mappings with the keys of :class:`~embodyflow.graph.node.Node`; ``executable_ref`` may be a callable.

    Returns:
        The nodes that could be made, and the problems; without problems the nodes are a valid graph.
    """
    if not specs:
        return [], [Problem("", "nodes: there are none")]
    functions: dict[str, Callable[..., Any]] = {}
    problems: list[Problem] = []
    if _imports_functions.get():
        specs, functions, problems = _find_functions(specs)
    nodes, unreadable = parse_nodes(specs)
    structure = structure_problems(specs)
    problems += unreadable + structure
    if not unreadable and not structure:
        problems += _unwritten({node.node_id: node for node in nodes}, functions)
    return nodes, problems


def parse_nodes(specs: Sequence[Any]) -> tuple[list[Node], list[Problem]]:
    """Turn specs into nodes, functions unseen; those with a problem are left out of the nodes."""
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
    """Replace every function by its name; return the new specs, the functions by node, and the problems."""
    named: list[Any] = []
    functions: dict[str, Callable[..., Any]] = {}
    problems: list[Problem] = []
    for index, spec in enumerate(specs):
        function = spec.get("executable_ref") if isinstance(spec, Mapping) else None
        if not isinstance(function, str) and not callable(function):
            named.append(spec)  # no function at all: parse_nodes says so
            continue
        name = name_of(spec, index)
        try:
            reference = reference_to(function)
            functions[name] = _resolve_function(reference)
        except (ImportError, TypeError, ValueError) as error:
            problems.append(Problem(name, f"executable_ref={reprlib.repr(function)}: {error}"))
            reference = "unknown:unknown"  # said once; the node's other keys are checked all the same
        named.append({**spec, "executable_ref": reference})
    return named, functions, problems


def _resolve_function(reference: str) -> Callable[..., Any]:
    """Return the function if a worker can call it with ``batch``, ``config``, ``worker`` and ``call``."""
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
    if path[0] == "config":  # after each key of a JSON value comes the type of what it holds
        path = (path[0], *path[1::2])
    key = ".".join(map(str, path))
    if detail["type"] == "missing":
        return f"{key}: is missing"
    if detail["type"] == "extra_forbidden":
        return f"{key}: unknown key; allowed are {', '.join(Node.model_fields)}"
    reason = detail["msg"].removeprefix("Value error, ").replace("Input should", "should")
    return f"{key}={reprlib.repr(detail['input'])}: {reason}"


def structure_problems(specs: Sequence[Any]) -> list[Problem]:
    """Find duplicate ids, dependencies that do not exist and cycles."""
    problems: list[Problem] = []
    names = [name_of(spec, index) for index, spec in enumerate(specs)]
    for name, count in Counter(names).items():
        if count > 1:
            problems.append(Problem(name, f"node_id: duplicate, used {count} times"))
    parents = {name: _dependencies(spec) for name, spec in zip(names, specs, strict=True)}
    for name, dependencies in parents.items():
        for parent in dependencies:
            if parent not in parents:
                known = ", ".join(other for other in parents if other != name)
                problems.append(Problem(name, f"dependencies: no node {parent!r}; there are {known or 'none'}"))
        for parent, count in Counter(dependencies).items():
            if count > 1:
                problems.append(Problem(name, f"dependencies: {parent!r} is named {count} times"))
    return problems + _cycles(parents)


def _cycles(parents: Mapping[str, Sequence[str]]) -> list[Problem]:
    """Find one cycle in every knot of them: each is taken out of the graph before the next is looked for."""
    problems: list[Problem] = []
    while True:
        try:
            TopologicalSorter(parents).prepare()
            return problems
        except CycleError as error:
            cycle = error.args[1]
            problems.append(Problem(cycle[0], f"dependencies: cycle {' → '.join(cycle)}"))
            parents = {name: dependencies for name, dependencies in parents.items() if name not in cycle}


def _unwritten(nodes: Mapping[str, Node], functions: Mapping[str, Callable[..., Any]]) -> list[Problem]:
    """Find columns that a node reads and no ancestor writes; ``nodes`` are a graph without other problems."""
    writes = {name: _columns(node.writes, functions.get(name), "__writes__") for name, node in nodes.items()}
    parents = {name: node.dependencies for name, node in nodes.items()}
    problems: list[Problem] = []
    for name, node in nodes.items():
        reads = _columns(node.reads, functions.get(name), "__reads__")
        above = [writes[ancestor] for ancestor in ancestors(name, parents)]
        if not reads or None in above:
            continue  # an ancestor that does not say what it writes may write anything
        written = {column for columns in above for column in columns or ()}
        for column in sorted(reads - written):
            others = [other for other, columns in writes.items() if column in (columns or ()) and other != name]
            hint = f"; {', '.join(others)} would" if others else ""
            problems.append(Problem(name, f"reads {column!r}, which none of its ancestors writes{hint}"))
    return problems


def _columns(of_node: Iterable[str] | None, function: Any, attribute: str) -> set[str] | None:
    columns = of_node if of_node is not None else declared(function, attribute)
    return None if columns is None else set(columns)


def ancestors(name: str, parents: Mapping[str, Sequence[str]]) -> list[str]:
    """Return every node whose output can reach ``name``, nearest first.

    Args:
        name: a node.
        parents: every node's parents; without cycles.
    """
    found = dict.fromkeys(parents[name])
    waiting = list(found)
    for ancestor in waiting:
        new = [parent for parent in parents[ancestor] if parent not in found]
        found.update(dict.fromkeys(new))
        waiting.extend(new)
    return list(found)


def name_of(spec: Any, index: int) -> str:
    """Return the node's id, or its place where it has none that could be shown."""
    name = spec.get("node_id") if isinstance(spec, Mapping) else None
    return name if isinstance(name, str) and name else f"nodes[{index}]"


def _dependencies(spec: Any) -> tuple[str, ...]:
    """Return the dependencies of a spec as far as they can be read; :func:`parse_nodes` reports the rest."""
    dependencies = spec.get("dependencies", ()) if isinstance(spec, Mapping) else ()
    if not isinstance(dependencies, list | tuple):
        return ()
    return tuple(parent for parent in dependencies if isinstance(parent, str))
