"""Compares an implementation with a protocol: attributes that are missing, and methods that cannot be called alike."""

import inspect
from typing import Any

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def differences(protocol: type, instance: object) -> list[str]:
    """Return the differences that keep ``instance`` from being used as ``protocol``, one sentence each.

    A method may have further parameters with defaults. mypy compares the types, in :mod:`typed_seams`.
    """
    found = []
    for name, member in sorted(_members(protocol).items()):
        if not hasattr(instance, name):
            found.append(f"{name} is missing")
        elif inspect.isfunction(member):
            found += [f"{name}: {each}" for each in _of_method(member, getattr(instance, name))]
    return found


def _members(protocol: type) -> dict[str, Any]:
    bases = [base for base in reversed(protocol.__mro__) if getattr(base, "_is_protocol", False)]
    return {name: member for base in bases for name, member in vars(base).items() if not name.startswith("_")}


def _of_method(wanted: Any, given: Any) -> list[str]:
    if not callable(given):
        return ["is no method"]
    _, *expected = inspect.signature(wanted).parameters.values()  # without self
    parameters = inspect.signature(given).parameters
    positional = [each for each in parameters.values() if each.kind in POSITIONAL]
    found, matched = [], set[str]()
    for place, each in enumerate(expected):
        if each.kind is each.POSITIONAL_ONLY:  # under any name
            own = positional[place] if place < len(positional) else None
        else:
            own = parameters.get(each.name)
            if own is not None and own.kind not in NAMED:
                own = None
            if own is not None and each.kind in POSITIONAL and (own.kind not in POSITIONAL or positional[place] != own):
                found.append(f"{each.name} is not argument {place}")
        if own is None:
            found.append(f"{each.name} is missing")
            continue
        matched.add(own.name)
        if own.default != each.default:
            found.append(f"{each.name} has the default {own.default}, not {each.default}")
    more = [each for each in parameters.values() if each.name not in matched and each.kind not in VARIADIC]
    return found + [f"{each.name} is required" for each in more if each.default is each.empty]
