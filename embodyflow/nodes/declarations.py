"""Declarations of the columns that a node function reads and writes, and of the keys that it reads."""

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def node(
    *, reads: tuple[str, ...], writes: tuple[str, ...], config: tuple[str, ...] | None = None
) -> Callable[[Function], Function]:
    """Declare the columns of a node function, and the keys that it reads; the function itself does not change.

    A graph in which a node reads a column that no ancestor writes is refused before anything starts. A function
    without a declaration is not checked and may write any column. If the columns depend on the use of the function, its
    node in the graph declares them, which takes precedence.

    Args:
        reads: Columns that must be in the batch.
        writes: Columns that the function adds or replaces.
        config: Keys of the node's ``config`` that the function reads, so that others are refused; ``None`` allows all,
            except for the functions of :mod:`tasks`, whose keys are known.

    Raises:
        TypeError: ``reads``, ``writes`` or ``config`` is not a tuple; ``("rewards")`` lacks a comma.

    Example:
        >>> @node(reads=("rewards", "group_id"), writes=("advantages", "returns"))
        ... def compute_advantage(batch, config=None, **kwargs): ...
    """
    for name, names in (("reads", reads), ("writes", writes), ("config", () if config is None else config)):
        if not isinstance(names, tuple):
            raise TypeError(f"{name} must be a tuple of names, not {names!r}")

    def declare(function: Function) -> Function:
        vars(function).update(__reads__=reads, __writes__=writes, __config__=config)
        return function

    return declare


def declared(function: Any, attribute: str) -> tuple[str, ...] | None:
    """Return the names declared as ``"__reads__"``, ``"__writes__"`` or ``"__config__"``; else ``None``."""
    names: tuple[str, ...] | None = getattr(function, attribute, None)
    return names
