"""Process of the tests: names of the program are proxies whose calls another process answers with data."""

import ast
import builtins
import importlib
import inspect
import os
import socket
import sys
import types
from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn

from embodyflow.rewards.sandbox.judging.crossing import IMMUTABLE, Json, MalformedError, Scope
from embodyflow.rewards.sandbox.judging.empty_arrays import EmptyArrays
from embodyflow.rewards.sandbox.judging.peer import Peer, Raised, TooLargeError
from embodyflow.rewards.sandbox.judging.program_side import COMPARED, FORWARDED, as_data

_LIBRARY = (
    "numpy", "math", "cmath", "random", "collections", "itertools", "functools", "re", "string", "datetime",
    "decimal", "fractions", "statistics", "copy", "heapq", "bisect", "operator", "json", "time",
)  # fmt: skip
MODULES = {"np": "numpy"} | {name: name for name in _LIBRARY}
"""Modules that tests use by these names without an import; they are the judge's own."""
KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (map, filter, zip, enumerate, reversed, type, types.GeneratorType, types.FunctionType)
}
"""Types that ``isinstance`` recognizes in a proxy."""
MUTABLE: dict[str, type] = {kind.__name__: kind for kind in (dict, list, set)}
ATTRIBUTES = ("__name__", "__qualname__", "__annotations__", "__defaults__", "__wrapped__", "__mro__", "__bases__")
FRAMEWORKS = ("unittest", "_pytest", "pytest", "doctest")
"""Packages whose exceptions end or skip a test, so that one from the program would pass it."""
JUDGING = frozenset(
    ("abs", "all", "any", "bool", "callable", "dict", "enumerate", "float", "frozenset", "getattr", "hasattr", "int",
     "isinstance", "issubclass", "iter", "len", "list", "map", "next", "print", "range", "repr", "round", "set",
     "sorted", "str", "tuple", "type", "zip")
)  # fmt: skip
"""Builtins that tests judge with; a program named as one of them is found only if the tests use no other builtin."""
GETATTR = {"library": ["builtins", "getattr"]}
_input = builtins.input


def judge(tests: str, connection: socket.socket, report: Callable[[bytes], object]) -> None:
    """Run tests against the program at the other end of a socket and report a verdict.

    A report is ``passed``, ``failed``, ``undecided`` or ``error`` with a reason, and ends this process.
    """
    side = _JudgeSide(connection, report)
    tree = ast.parse(tests, "<tests>")
    names = _Names(side, tree)
    sys.modules["response"] = _Response(side)
    try:
        if side.read() != {"ready": True}:
            side.end("failed")
        if any(isinstance(node, ast.Name) and node.id in ("np", "numpy") for node in ast.walk(tree)):
            side.guard_empty_arrays(names)
        exec(compile(tree, "<tests>", "exec"), names)
    except BaseException:
        side.end("failed")
    side.end("passed")


class _JudgeSide(Peer):
    def __init__(self, connection: socket.socket, report: Callable[[bytes], object]) -> None:
        super().__init__(connection)
        self._report = report
        self._functions: list[Callable[..., Any]] = []
        self._proxies: dict[int, _Proxy] = {}
        self._stdin = sys.stdin
        self._empty_arrays: EmptyArrays | None = None

    def guard_empty_arrays(self, names: "_Names") -> None:
        """Refuse from now on that the code with these global names compares an array without elements with others."""
        self._empty_arrays = EmptyArrays(names)

    def end(self, verdict: str) -> NoReturn:
        """Report a verdict and end this process, so that no handler of the tests can change it."""
        self._report(verdict.encode())
        os._exit(0)

    def request(
        self, target: Json, *arguments: Any, method: str | None = None, keywords: dict[str, Any] | None = None
    ) -> Any:
        """Call the program and return its result, or raise its exception.

        Args:
            target: Function or object of the program.
            arguments: Positional arguments.
            method: Special method of the target; ``None`` calls the target.
            keywords: Keyword arguments.
        """
        if builtins.input is not _input:
            self.end("error the tests replace input(), which the program cannot see; set sys.stdin")
        given = None
        if sys.stdin is not self._stdin:
            self._stdin, given = sys.stdin, sys.stdin.read()
        try:
            return self.call(target, arguments, keywords or {}, method=method, input=given)
        except Raised as raised:
            error = raised.error
        except TooLargeError:
            self.end("undecided")
        except BaseException:  # the program ended, or what it sent is not an answer
            self.end("failed")
        if any(kind.__module__.partition(".")[0] in FRAMEWORKS for kind in type(error).__mro__):
            self.end("failed")
        if isinstance(error, StopIteration) and method != "__next__":
            self.end("undecided")  # it would end a loop of the tests over map() before the first assertion
        raise error

    def find(self, message: Json) -> Callable[..., Any]:
        return self._functions[message["call"]["callback"]]

    def before_answer(self, answer: Json) -> None:
        printed = answer["printed"]
        if not isinstance(printed, str):
            raise MalformedError("printed is not text")
        sys.stdout.write(printed)

    def encode_other(self, value: object, scope: Scope) -> Json:
        value = getattr(type(value), "crossed_proxy", value)
        if issubclass(type(value), _Proxy):
            return {"object": _number(value)}  # type: ignore[arg-type]
        if isinstance(value, types.ModuleType):
            return {"library": [value.__name__, ""]}
        module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if module in sys.modules and module not in ("__main__", "response") and name and "<" not in name:
            return {"library": [module, name]}
        if hasattr(value, "__next__"):
            return {"iterator": self._register(value.__next__)}
        if inspect.isroutine(value) or isinstance(value, type):
            return {"callback": self._register(value)}
        self.end(f"error the tests pass a {type(value).__name__} to the program, which is no data")

    def _register(self, function: Callable[..., Any]) -> int:
        self._functions.append(function)
        return len(self._functions) - 1

    def decode(self, item: Json, scope: Scope) -> Any:
        """Return the value that JSON encodes; an array without elements is guarded."""
        value = super().decode(item, scope)
        return value if self._empty_arrays is None else self._empty_arrays.guard(value)

    def decode_other(self, item: Json, scope: Scope) -> Any:
        if "subclass" in item:
            base = next(base for base in IMMUTABLE if base.__name__ == item["subclass"])
            data = self.decode(item["data"], Scope())
            if type(data) is not base:
                raise MalformedError("not data of the type")
            return _data_class(base, self.decode_other(item["as"], scope))(data)
        number = item["object"]
        if type(number) is not int:
            raise MalformedError("not a number")
        if number not in self._proxies:
            forwarded, compared = frozenset(item["forwarded"]), frozenset(item["compared"])
            if not (forwarded <= set(FORWARDED) and compared <= set(COMPARED)):
                raise MalformedError("not special methods")
            mutable = MUTABLE.get(item["base"])
            proxy_class = _proxy_class(forwarded, compared, _Proxy if mutable is None else _DataProxy)
            self._proxies[number] = proxy_class(self, number, mutable or KINDS.get(item["kind"]))
        proxy = self._proxies[number]
        return self._run_coroutine(proxy) if item.get("kind") == "coroutine" else proxy

    async def _run_coroutine(self, coroutine: "_Proxy") -> Any:
        """Run a coroutine of the program to its end, in an event loop of its own process."""
        return self.request({"library": ["asyncio", "run"]}, coroutine)


class _Proxy:
    """Object of the program's process; attributes and methods are the program's."""

    def __init__(self, side: _JudgeSide, number: int, kind: type | None) -> None:
        object.__setattr__(self, "_embodyflow", (side, number, kind))

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        kind: type | None = object.__getattribute__(self, "_embodyflow")[2]
        return kind or type(self)

    def __getattr__(self, name: str) -> Any:
        if name in ("__deepcopy__", "__copy__"):
            return lambda *_: _side(self).request({"library": ["copy", name.strip("_")]}, self)
        if name.startswith("__") and name not in ATTRIBUTES:
            raise AttributeError(name)  # NumPy would read memory at an address in __array_interface__
        return _side(self).request(GETATTR, self, name)

    def __setattr__(self, name: str, value: object) -> None:
        _side(self).request({"library": ["builtins", "setattr"]}, self, name, value)

    def __str__(self) -> str:
        return str(_side(self).request({"library": ["builtins", "str"]}, self))

    def __repr__(self) -> str:
        return str(_side(self).request({"library": ["builtins", "repr"]}, self))

    def __hash__(self) -> int:
        return hash(_number(self))

    def __instancecheck__(self, instance: object) -> bool:
        return _side(self).request({"library": ["builtins", "isinstance"]}, instance, self) is True

    def __subclasscheck__(self, subclass: type) -> bool:
        return _side(self).request({"library": ["builtins", "issubclass"]}, subclass, self) is True

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        _side(self).end("undecided")


class _DataProxy(_Proxy):
    """Object of a subclass of a mutable container, compared by its present data."""


def _side(proxy: _Proxy) -> _JudgeSide:
    side: _JudgeSide = object.__getattribute__(proxy, "_embodyflow")[0]
    return side


def _number(proxy: _Proxy) -> int:
    number: int = object.__getattribute__(proxy, "_embodyflow")[1]
    return number


@cache
def _proxy_class(forwarded: frozenset[str], compared: frozenset[str], base: type[_Proxy]) -> type[_Proxy]:
    """Return the class of proxies whose objects have these special methods."""
    if "__iter__" in forwarded:
        compared -= {"__contains__"}  # membership compares each item in this process
    members: dict[str, Any] = {name: _forward(name) for name in forwarded}
    members |= {name: _compare(name) for name in compared}
    members["__doc__"] = property(lambda self: _side(self).request(GETATTR, self, "__doc__"))
    return type("object", (base,), {**members, "__hash__": _Proxy.__hash__})


def _forward(name: str) -> Callable[..., Any]:
    def method(self: _Proxy, *arguments: Any, **keywords: Any) -> Any:
        method = None if name == "__call__" else name
        return _side(self).request({"object": _number(self)}, *arguments, method=method, keywords=keywords)

    return method


def _compare(name: str) -> Callable[[_Proxy, object], Any]:
    def method(self: _Proxy, other: object) -> Any:
        if not issubclass(type(other), _Proxy):  # the other value may be what the tests expect
            if not issubclass(type(self), _DataProxy):
                _side(self).end("undecided")
            data = _side(self).request({"library": [as_data.__module__, "as_data"]}, self)
            if type(data) not in MUTABLE.values():  # the program has replaced as_data
                _side(self).end("failed")
            if not hasattr(data, name):
                _side(self).end("undecided")
            return getattr(data, name)(other)
        return _side(self).request({"object": _number(self)}, other, method=name)

    return method


def _data_class(base: type, proxy: _Proxy) -> type:
    """Return a class of data whose further attributes, such as a named tuple's fields, are the program's."""
    return type(base.__name__, (base,), {"crossed_proxy": proxy, "__getattr__": lambda _, name: getattr(proxy, name)})


class _Response(types.ModuleType):
    """Module ``response``, from which tests may import the program."""

    def __init__(self, side: _JudgeSide) -> None:
        super().__init__("response")
        self._side = side

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._side.request({"name": name})


class _Names(dict[str, Any]):
    """Global names of the tests; those that the tests do not define are the program's.

    Builtins and modules are the judge's, so that a program cannot replace what compares. A builtin's name is the
    program's only if the tests use no other name of it, as in ``assert sum(10, 15) == 6``, nor its module.
    """

    def __init__(self, side: _JudgeSide, tree: ast.Module) -> None:
        super().__init__(__name__="__main__")
        self._side = side
        loaded, bases, bound = _used_names(tree)
        self._modules = {name for name in bases - bound if name in MODULES and name not in loaded}
        free = (loaded | bases) - bound - self._modules
        shadows = all(hasattr(builtins, name) for name in free) and not _names_the_program(tree)
        self._shadowed = (free - JUDGING or (free if len(free) == 1 else set())) if shadows else set()

    def __missing__(self, name: str) -> Any:
        if name in self._modules:
            return importlib.import_module(MODULES[name])
        if name.startswith("__") or (hasattr(builtins, name) and name not in self._shadowed):
            raise KeyError(name)
        try:
            return self._side.request({"name": name})
        except NameError:
            raise KeyError(name) from None


def _names_the_program(tree: ast.Module) -> bool:
    """Return True if the tests import the module ``response``, or have its name as a text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and any(alias.name == "response" for alias in node.names):
            return True
        if isinstance(node, ast.ImportFrom) and node.module == "response":
            return True
        if isinstance(node, ast.Constant) and node.value == "response":
            return True
    return False


def _used_names(tree: ast.Module) -> tuple[set[str], set[str], set[str]]:
    """Return the names that a text reads, those whose attributes it reads, and those that it binds."""
    nodes = list(ast.walk(tree))
    owners = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    loaded: set[str] = set()
    bases: set[str] = set()
    bound: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            (bases if id(node) in owners else loaded).add(node.id)
        elif isinstance(node, ast.Name):
            bound.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
    return loaded, bases, bound
