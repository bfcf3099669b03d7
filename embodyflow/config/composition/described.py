"""A configuration as YAML with the meaning of each key in a comment above it."""

import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

WIDTH = 100
_ENTRY = re.compile(r"(?P<names>\w+(?:, \w+)*): (?P<meaning>.*)")


def describe(config: BaseModel) -> str:
    """Format a configuration as YAML with a comment above each key: its meaning and allowed values.

    Args:
        config: Model whose fields have a description, or an entry under ``Attributes:`` in its docstring.
    """
    return "\n".join(_lines(config, "")) + "\n"


def meanings(kind: type[BaseModel]) -> dict[str, str]:
    """Return the descriptions of a model's fields from the fields, its docstring and those of its base classes."""
    found = {name: field.description for name, field in kind.model_fields.items() if field.description}
    for each in kind.__mro__:
        found = _attributes(inspect.cleandoc(each.__dict__.get("__doc__") or "")) | found
    return {name: meaning for name, meaning in found.items() if name in kind.model_fields}


def _lines(model: BaseModel, indent: str) -> Iterator[str]:
    kind, before = type(model), ""
    descriptions, values = meanings(kind), model.model_dump(mode="json")
    for name, field in kind.model_fields.items():
        value = getattr(model, name)
        comment = descriptions.get(name, "") or (_summary(type(value)) if isinstance(value, BaseModel) else "")
        if choices := _choices(field):
            comment = f"{comment.removesuffix('.')}; {choices}" if comment else choices
        if comment != before:  # keys that share a comment show it above the first
            yield from textwrap.wrap(comment, WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")
        before = comment
        if isinstance(value, BaseModel):
            yield f"{indent}{name}:"
            yield from _lines(value, f"{indent}  ")
        else:
            yield f"{indent}{name}: {_plain(values[name])}"


def _plain(value: Any) -> str:
    """Format a value as YAML on one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6)
    return text.removesuffix("\n").removesuffix("\n...")


def _choices(field: FieldInfo) -> str:
    """Return the allowed values if the field lists several literals or examples, else an empty string."""
    if field.examples:
        return f"choices: {', '.join(map(str, field.examples))}"
    kinds = [field.annotation, *get_args(field.annotation)]
    words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    return f"allowed: {', '.join(map(str, words))}" if len(words) > 1 else ""


def _summary(kind: type[BaseModel]) -> str:
    """Return the first line of a model's docstring."""
    return _as_text(inspect.cleandoc(kind.__doc__ or "").partition("\n")[0])


def _attributes(docstring: str) -> dict[str, str]:
    """Return the entries of the section ``Attributes:`` in a docstring, by name."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in docstring.partition("Attributes:\n")[2].splitlines():
        if line and not line.startswith("    "):
            break  # the next section
        if entry := _ENTRY.fullmatch(line[4:]):
            names = entry["names"].split(", ")
            found |= dict.fromkeys(names, entry["meaning"])
        elif line.strip():
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
    return {name: _as_text(meaning) for name, meaning in found.items()}


def _as_text(markup: str) -> str:
    return re.sub(r":\w+:`~?([^`]*)`", r"\1", markup).replace("``", "")
