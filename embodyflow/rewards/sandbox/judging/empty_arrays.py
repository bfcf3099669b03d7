"""NumPy for tests: an array without elements is not equal or close to one with elements.

NumPy broadcasts ``[]`` against a number or a row to an array without elements, of which ``all()`` is true, so a program
that returns ``[]`` would pass ``assert np.allclose(f(x), expected)``.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "subtract")
CONVERSIONS = ("array", "asarray", "asanyarray", "ascontiguousarray")
CHECKS = {
    "numpy": ("allclose", "isclose", "array_equiv"),
    "numpy.testing": ("assert_allclose", "assert_array_equal", "assert_array_almost_equal", "assert_almost_equal"),
}
"""Functions that convert lists themselves, by module."""


class EmptyArrays:
    """Guard of the arrays without elements that the tests make or compare.

    Other code of this process gets NumPy as it is.

    Args:
        names: Global names of the tests.
    """

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names, self._numpy = names, importlib.import_module("numpy")  # which takes 0.1 s
        self._guarded = _guarded_class(self._numpy)
        for name in CONVERSIONS:
            self._replace(self._numpy, name, self._conversion)
        for module, checks in CHECKS.items():
            for name in checks:
                self._replace(importlib.import_module(module), name, self._check)

    def guard(self, value: Any) -> Any:
        """Return an array without elements as one that cannot be compared; any other value as it is."""
        is_empty = type(value) is self._numpy.ndarray and value.size == 0
        return value.view(self._guarded) if is_empty else value

    def _replace(self, module: Any, name: str, replacement: Callable[[Any], Any]) -> None:
        function = getattr(module, name)
        by_tests = replacement(function)

        @wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            is_of_tests = sys._getframe(1).f_globals is self._names
            return (by_tests if is_of_tests else function)(*arguments, **keywords)

        setattr(module, name, call)

    def _conversion(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments, **keywords: self.guard(function(*arguments, **keywords))

    def _check(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def check(*arguments: Any, **keywords: Any) -> Any:
            converted = {name: self._convert(value) for name, value in keywords.items()}
            return function(*map(self._convert, arguments), **converted)

        return check

    def _convert(self, value: Any) -> Any:
        return self.guard(self._numpy.asanyarray(value)) if type(value) in (list, tuple) else value


def _guarded_class(numpy: Any) -> Any:
    """Return the class of arrays without elements whose comparison with what has elements raises ``ValueError``."""

    def plain(value: Any) -> Any:
        return value.view(numpy.ndarray) if isinstance(value, guarded) else value

    def apply(self: Any, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        operands = [plain(each) for each in inputs]
        others = [
            each for each in operands if numpy.size(each) and repr(each) not in ("inf", "-inf")
        ]  # numpy.testing's
        if ufunc.__name__ in COMPARISONS and others:
            raise ValueError("an array without elements is compared with one that has elements")
        if "out" in options:
            options["out"] = tuple(plain(each) for each in options["out"])
        made = getattr(ufunc, method)(*operands, **options)
        return made.view(guarded) if isinstance(made, numpy.ndarray) and made.size == 0 else made

    guarded: Any = type("ndarray", (numpy.ndarray,), {"__array_ufunc__": apply})
    return guarded
