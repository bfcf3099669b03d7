"""Declarations of the columns that a node function reads and writes."""

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def node(*, reads: tuple[str, ...], writes: tuple[str, ...]) -> Callable[[Function], Function]:
    """Declare the columns of a node function; the function itself does not change.

    A graph in which a node reads a column that no ancestor writes is refused before anything starts. A function
    without a declaration is not checked and may write any column. If the columns depend on the use of the function, its
    node in the graph declares them, which takes precedence.

    Args:
        reads: Columns that must be in the batch.
        writes: Columns that the function adds or replaces.

    Raises:
        TypeError: ``reads`` or ``writes`` is not a tuple; ``("rewards")`` lacks a comma.

    Example:
        >>> @node(reads=("rewards", "group_id"), writes=("advantages", "returns"))
        ... def compute_advantage(batch, config=None, **kwargs): ...
    """
    for name, columns in (("reads", reads), ("writes", writes)):
        if not isinstance(columns, tuple):
            raise TypeError(f"{name} must be a tuple of column names, not {columns!r}")

    def declare(function: Function) -> Function:
        vars(function).update(__reads__=reads, __writes__=writes)
        return function

    return declare


def declared(function: Any, attribute: str) -> tuple[str, ...] | None:
    """Return the columns declared as ``"__reads__"`` or ``"__writes__"``; ``None`` without a declaration."""
    columns: tuple[str, ...] | None = getattr(function, attribute, None)
    return columns
