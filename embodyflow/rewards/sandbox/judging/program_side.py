"""Process of the program: it runs the program, then answers the calls of the tests and sees nothing else of them."""

import importlib
import io
import socket
import sys
import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from embodyflow.rewards.sandbox.judging.crossing import IMMUTABLE, Json, MalformedError, Scope
from embodyflow.rewards.sandbox.judging.peer import Peer, Printed, Raised

FORWARDED = (
    "__call__", "__len__", "__iter__", "__next__", "__reversed__", "__getitem__", "__setitem__", "__delitem__",
    "__enter__", "__exit__", "__bool__", "__int__", "__float__", "__index__", "__complex__", "__neg__", "__pos__",
    "__abs__", "__invert__", "__round__",
)  # fmt: skip
"""Special methods that take inputs only."""
COMPARED = (
    "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__contains__", "__add__", "__radd__", "__sub__",
    "__rsub__", "__mul__", "__rmul__", "__matmul__", "__rmatmul__", "__truediv__", "__rtruediv__", "__floordiv__",
    "__rfloordiv__", "__mod__", "__rmod__", "__pow__", "__rpow__", "__and__", "__rand__", "__or__", "__ror__",
    "__xor__", "__rxor__",
)  # fmt: skip
"""Special methods that may receive an expected value."""


def serve_program(program: str, connection: socket.socket) -> None:
    """Run a program as the module ``response`` and answer calls to it until the tests end."""
    # The program is imported, so code under `if __name__ == "__main__"`, which may ask for input or exit, does not run.
    module = sys.modules["response"] = types.ModuleType("response")  # dataclasses look up their module
    exec(compile(program, "<response>", "exec"), module.__dict__)
    module.__name__ = "__main__"
    peer = _ProgramSide(connection, module)
    peer.write({"ready": True})
    peer.serve()


class _ProgramSide(Peer):
    def __init__(self, connection: socket.socket, module: types.ModuleType) -> None:
        super().__init__(connection)
        self._module = module
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}

    def find(self, message: Json) -> Callable[..., Any]:
        target, method = message["call"], message.get("method")
        if "name" in target:
            return partial(self._find_name, target["name"])
        function: Callable[..., Any] = self.decode(target, Scope())
        if method is None:
            return function
        return partial(getattr(type(function), method), function)

    def run(self, call: Callable[[], Any], message: Json, answer: dict[str, Json]) -> Any:
        output, sys.stdout = sys.stdout, Printed()
        if message.get("input") is not None:
            sys.stdin = io.StringIO(message["input"])
        try:
            return call()
        finally:
            printed, sys.stdout = sys.stdout, output
            answer["printed"] = printed.getvalue() if isinstance(printed, Printed) else ""

    def _find_name(self, name: str) -> Any:
        try:
            return vars(self._module)[name]
        except KeyError:
            raise NameError(f"name {name!r} is not defined") from None

    def encode_other(self, value: object, scope: Scope) -> Json:
        number = self._numbers.setdefault(id(value), len(self._objects))
        if number == len(self._objects):
            self._objects.append(value)
        kind = type(value)
        forwarded = [name for name in FORWARDED if _special(kind, name) is not None]
        compared = [name for name in COMPARED if _special(kind, name) is not getattr(object, name, None)]
        base = next((base.__name__ for base in (dict, list, set) if isinstance(value, base)), "")
        item = {"object": number, "kind": kind.__name__, "base": base, "forwarded": forwarded, "compared": compared}
        for immutable in IMMUTABLE:
            if isinstance(value, immutable):
                return {"subclass": immutable.__name__, "data": self.encode(as_data(value), Scope()), "as": item}
        return item

    def decode_other(self, item: Json, scope: Scope) -> Any:
        if "object" in item:
            return self._objects[item["object"]]
        if "callback" in item:
            return partial(self._call_back, item)
        if "iterator" in item:
            return _iterate(partial(self._call_back, {"callback": item["iterator"]}))
        if "library" in item:
            module, name = item["library"]
            found: Any = importlib.import_module(module)
            for part in name.split(".") if name else ():
                found = getattr(found, part)
            return found
        raise MalformedError("not an encoded value")

    def _call_back(self, target: Json, *arguments: Any, **keywords: Any) -> Any:
        try:
            return self.call(target, arguments, keywords)
        except Raised as raised:
            error = raised.error
        raise error


def _special(kind: type, name: str) -> object:
    """Return a special method as the interpreter finds it, which skips the metaclass."""
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)


def as_data(value: object) -> object:
    """Return the data of an object of a subclass of a builtin type, past any method that the subclass replaces."""
    if isinstance(value, dict):
        return dict(dict.items(value))
    containers: tuple[Any, ...] = (list, tuple, set, frozenset)
    for container in containers:
        if isinstance(value, container):
            return container(container.__iter__(value))
    numbers: tuple[Any, ...] = (int, float, complex)
    for number in numbers:
        if isinstance(value, number):
            return number.__pos__(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes):
        return bytes(memoryview(value))
    raise TypeError(f"{type(value).__name__} has no data")


def _iterate(advance: Callable[[], Any]) -> Iterator[Any]:
    while True:
        try:
            item = advance()
        except StopIteration:
            return
        yield item
