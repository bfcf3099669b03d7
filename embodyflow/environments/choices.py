"""The check of an environment's arguments that have a list of allowed values."""

from collections.abc import Collection

_MOST_SHOWN = 50


def check_choice(name: str, value: object, allowed: Collection[object]) -> None:
    """Refuse a value that is not allowed.

    Raises:
        ValueError: The message lists the allowed values; of a long list the first ones and the last.
    """
    if value in allowed:
        return
    shown = [str(entry) for entry in allowed]
    listed = ", ".join(shown if len(shown) <= _MOST_SHOWN else [*shown[:3], "…", shown[-1]])
    raise ValueError(f"{name}={value!r}: must be one of {listed}")
