"""Values as JSON, so that two processes exchange data and never code.

Both processes number the mutable containers of a call in the order in which they cross. An answer refers to them by
number and repeats their contents, so that a function may change its arguments or return one of them.
"""

import datetime
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeAlias

Json: TypeAlias = Any
"""Value that the module ``json`` writes and reads."""

EXACT_INTEGERS = 2**53
CONTAINERS: dict[str, type] = {
    kind.__name__: kind for kind in (list, dict, set, deque, Counter, OrderedDict, defaultdict, bytearray)
}
"""Mutable containers, which keep their identity during a call."""
MAPPINGS = (dict, Counter, OrderedDict, defaultdict)
BUILT: dict[type, Callable[[Any], tuple[object, ...]]] = {
    complex: lambda value: (value.real, value.imag),
    bytes: lambda value: (value.decode("latin-1"), "latin-1"),
    range: lambda value: (value.start, value.stop, value.step),
    slice: lambda value: (value.start, value.stop, value.step),
    Fraction: lambda value: (value.numerator, value.denominator),
    Decimal: lambda value: (str(value),),
    datetime.date: lambda value: (value.year, value.month, value.day),
    datetime.timedelta: lambda value: (value.days, value.seconds, value.microseconds),
    datetime.timezone: lambda value: (value.utcoffset(None),),
    datetime.time: lambda value: (value.hour, value.minute, value.second, value.microsecond, value.tzinfo),
    datetime.datetime: lambda value: (*value.timetuple()[:6], value.microsecond, value.tzinfo),
    tuple: lambda value: (list(value),),
    frozenset: lambda value: (list(value),),
}
"""Immutable types and the arguments that build a value of them."""
BUILT_BY_NAME = {kind.__name__: kind for kind in BUILT}
VIEWS: tuple[type, ...] = (type({}.keys()), type({}.items()), type({}.values()))
IMMUTABLE = (int, float, str, bytes, complex, tuple, frozenset)
"""Types whose subclasses cross as data of the type."""
TYPES: dict[str, type] = {
    kind.__name__: kind for kind in (*BUILT, *CONTAINERS.values(), int, float, str, bool, object, type(None))
}
ARRAY_KINDS = "biufcSUMm"


class MalformedError(ValueError):
    """Text from the other process is not an encoded value."""


class Scope:
    """Mutable containers that have crossed during one call, numbered in order."""

    def __init__(self) -> None:
        self.containers: list[Any] = []
        self._numbers: dict[int, int] = {}

    def add(self, container: object) -> None:
        """Give a container the next number."""
        self._numbers[id(container)] = len(self.containers)
        self.containers.append(container)

    def number(self, value: object) -> int | None:
        """Return the number of a container that has crossed, else ``None``."""
        return self._numbers.get(id(value))


class Crossing:
    """Encoding and decoding of data; a subclass says how other values cross."""

    def __init__(self) -> None:
        self._mirrors: dict[tuple[str, str], type[BaseException]] = {}

    def encode(self, value: object, scope: Scope) -> Json:
        """Return a value as JSON."""
        kind = type(value)
        if value is None or kind in (bool, str):
            return value
        if isinstance(value, int) and kind is int:
            return value if abs(value) < EXACT_INTEGERS else {"int": hex(value)}
        if isinstance(value, float) and kind is float:
            return value if abs(value) < float("inf") else {"float": repr(value)}
        if (number := scope.number(value)) is not None:
            return {"crossed": number}
        if CONTAINERS.get(kind.__name__) is kind:
            scope.add(value)
            return {"container": kind.__name__, "contents": self.contents(value, scope)}
        if kind in VIEWS:
            return {"view": kind.__name__, "of": [self.encode(part, scope) for part in value]}  # type: ignore[attr-defined]
        if kind in BUILT:
            arguments = value if kind in (tuple, frozenset) else BUILT[kind](value)
            return {"build": kind.__name__, "from": self._encode_all(arguments, scope)}  # type: ignore[arg-type]
        if (array := _encode_array(value)) is not None:
            return array
        # A proxy may claim any class, so the checks are on its type.
        if issubclass(kind, BaseException):
            return self.encode_exception(value, scope)  # type: ignore[arg-type]
        if issubclass(kind, type):
            if issubclass(value, BaseException):  # type: ignore[arg-type]
                return {"exception_class": _encode_class(value)}  # type: ignore[arg-type]
            if (name := getattr(value, "__name__", "")) in TYPES and TYPES[name] is value:
                return {"type": name}
        if value is NotImplemented:
            return {"not_implemented": True}
        return self.encode_other(value, scope)

    def decode(self, item: Json, scope: Scope) -> Any:
        """Return the value that JSON encodes.

        Raises:
            MalformedError: It encodes none.
        """
        if item is None or isinstance(item, (bool, int, float, str)):
            return item
        if not isinstance(item, dict) or not item:
            raise MalformedError("not an encoded value")
        tag = next(iter(item))
        content = item[tag]
        if tag == "int":
            return int(content, 16)
        if tag == "float":
            return float(content)
        if tag == "crossed":
            return scope.containers[content]
        if tag == "container":
            container = CONTAINERS[content]()
            scope.add(container)
            self.fill(container, item["contents"], scope)
            return container
        if tag == "build":
            parts = [self.decode(part, scope) for part in item["from"]]
            kind = BUILT_BY_NAME[content]
            return kind(parts) if kind in (tuple, frozenset) else kind(*parts)
        if tag == "view":
            parts = [self.decode(part, scope) for part in item["of"]]
            if content == "dict_values":
                return dict(enumerate(parts)).values()
            return dict.fromkeys(parts).keys() if content == "dict_keys" else dict(parts).items()
        if tag == "array":
            return _decode_array(content, item["shape"], item["bytes"])
        if tag == "exception_class":
            return self._decode_class(content)
        if tag == "exception":
            return self.decode_exception(item, scope)
        if tag == "type":
            return TYPES[content]
        if tag == "not_implemented":
            return NotImplemented
        return self.decode_other(item, scope)

    def contents(self, container: Any, scope: Scope) -> Json:
        """Return the contents of a container as JSON."""
        if isinstance(container, bytearray):
            return container.hex()
        if isinstance(container, MAPPINGS):
            return [[self.encode(key, scope), self.encode(value, scope)] for key, value in container.items()]
        return self._encode_all(container, scope)

    def fill(self, container: Any, contents: Json, scope: Scope) -> None:
        """Replace the contents of a container."""
        if isinstance(container, bytearray):
            container[:] = bytes.fromhex(contents)
        elif isinstance(container, MAPPINGS):
            new = [(self.decode(key, scope), self.decode(value, scope)) for key, value in contents]
            container.clear()
            for key, value in new:
                container[key] = value
        else:
            parts = [self.decode(part, scope) for part in contents]
            container.clear()
            (container.update if isinstance(container, set) else container.extend)(parts)

    def encode_exception(self, error: BaseException, scope: Scope) -> Json:
        """Return an exception as JSON: its class, arguments, text and attributes that are data."""
        attributes = {name: value for name, value in vars(error).items() if _is_plain(value)}
        arguments = [value if _is_plain(value) else str(value) for value in error.args]
        return {
            "exception": _encode_class(type(error)),
            "arguments": self._encode_all(arguments, scope),
            "attributes": self.encode(attributes, scope),
            "text": str(error),
        }

    def decode_exception(self, item: Json, scope: Scope) -> BaseException:
        """Return the exception that JSON encodes."""
        kind = self._decode_class(item["exception"])
        arguments = [self.decode(argument, scope) for argument in item["arguments"]]
        error: BaseException = kind(*arguments) if kind.__module__ == "builtins" else kind.__new__(kind, *arguments)
        error.args = tuple(arguments)
        vars(error).update(self.decode(item["attributes"], scope))
        if hasattr(kind, "crossed_text"):
            vars(error)["crossed_text"] = str(item["text"])
        return error

    def encode_other(self, value: object, scope: Scope) -> Json:
        """Return a value that is not data as JSON."""
        raise NotImplementedError

    def decode_other(self, item: Json, scope: Scope) -> Any:
        """Return the value that is not data and that JSON encodes."""
        raise MalformedError("not an encoded value")

    def _encode_all(self, values: Iterable[object], scope: Scope) -> Json:
        return [self.encode(value, scope) for value in values]

    def _decode_class(self, item: Json) -> type[BaseException]:
        """Return this process's class of an exception, or a class with the same name and bases."""
        module, name, bases = item
        known = getattr(sys.modules.get(module), name, None) if module != "response" else None
        if isinstance(known, type) and issubclass(known, BaseException):
            return known
        if (module, name) not in self._mirrors:
            parents = tuple(self._decode_class(base) for base in bases)
            if not parents:
                raise MalformedError("not a class of exceptions")
            members = {"crossed_text": "", "__str__": lambda self: self.crossed_text or BaseException.__str__(self)}
            self._mirrors[module, name] = type(name, parents, members)
        return self._mirrors[module, name]


def _encode_class(kind: type) -> Json:
    bases = [_encode_class(base) for base in kind.__bases__ if issubclass(base, BaseException)]
    return [kind.__module__, kind.__qualname__, bases]


def _is_plain(value: object, depth: int = 3) -> bool:
    if value is None or type(value) in (bool, int, float, str, bytes):
        return True
    return type(value) in (list, tuple) and depth > 0 and all(_is_plain(part, depth - 1) for part in value)  # type: ignore[attr-defined]


def _encode_array(value: Any) -> Json:
    """Return an array or a number of NumPy as JSON; ``None`` if the value is neither."""
    numpy = sys.modules.get("numpy")
    if (
        numpy is None
        or not issubclass(type(value), (numpy.ndarray, numpy.generic))
        or value.dtype.kind not in ARRAY_KINDS
    ):
        return None
    shape = list(value.shape) if isinstance(value, numpy.ndarray) else None
    return {"array": value.dtype.str, "shape": shape, "bytes": value.tobytes().hex()}


def _decode_array(dtype: str, shape: list[int] | None, data: str) -> Any:
    import numpy

    kind = numpy.dtype(dtype)
    if kind.kind not in ARRAY_KINDS:
        raise MalformedError(f"dtype={dtype}: not numbers or text")
    array = numpy.frombuffer(bytes.fromhex(data), kind).copy()
    return array[0] if shape is None else array.reshape(shape)
