"""Arrays of several agents in one mapping, each under the agent's name, a dot, and a name of its own."""

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def named_for(agent: str, arrays: Mapping[str, T]) -> dict[str, T]:
    """Return the arrays of an agent under the names that they have beside those of other agents."""
    return {f"{agent}.{name}": array for name, array in arrays.items()}


def arrays_of(agent: str, arrays: Mapping[str, T]) -> dict[str, T]:
    """Return an agent's arrays under their own names. Names of agents have no dot, so none begins like another."""
    prefix = f"{agent}."
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
