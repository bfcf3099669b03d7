"""What a user's reward function must be to give scores, found out before a process starts."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any


def check_call(function: Callable[..., Any], kwargs: Mapping[str, Any] | None) -> None:
    """Check that a call of a function gives a result, and not an object or an awaitable.

    Args:
        function: Function of the user's.
        kwargs: Keyword arguments that it is called with after a sample; ``None`` leaves its arguments unchecked.

    Raises:
        ValueError: It is a class, is asynchronous, or does not take these arguments.
    """
    if inspect.isclass(function):
        raise ValueError("is a class; allowed are a function and an instance that can be called")
    if any(_is_asynchronous(each) for each in (function, getattr(function, "__call__", None))):  # noqa: B004 its method
        raise ValueError("is asynchronous, so a call returns no score; allowed is a function without async")
    if kwargs is None:
        return
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a function of C may have none
        return
    try:
        signature.bind(None, **kwargs)
    except TypeError as error:
        called = ", ".join(["one sample or a list of them", *kwargs])
        raise ValueError(f"{error}; it is called with {called}") from error


def yields(function: Callable[..., Any]) -> bool:
    """Return True if a call of a function returns a generator."""
    return inspect.isgeneratorfunction(function)


def _is_asynchronous(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
