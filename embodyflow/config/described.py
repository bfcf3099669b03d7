"""A configuration as people read it: YAML, with the meaning of each key above it."""

import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel

WIDTH = 100
_ENTRY = re.compile(r"(?P<names>\w+(?:, \w+)*): (?P<meaning>.*)")


def describe(config: BaseModel) -> str:
    """Return a configuration as YAML, in which a comment above a key says what it means and what is allowed.

    Args:
        config: a model whose fields have a description, or stand in its docstring under ``Attributes:``.
    """
    return "\n".join(_lines(config, "")) + "\n"


def meanings(kind: type[BaseModel]) -> dict[str, str]:
    """Return what is said of a model's fields, in its docstring or those of the models it extends."""
    found = {name: field.description for name, field in kind.model_fields.items() if field.description}
    for each in kind.__mro__:
        found = _attributes(inspect.cleandoc(each.__dict__.get("__doc__") or "")) | found
    return {name: meaning for name, meaning in found.items() if name in kind.model_fields}


def _lines(model: BaseModel, indent: str) -> Iterator[str]:
    kind, before = type(model), ""
    told, values = meanings(kind), model.model_dump(mode="json")
    for name, field in kind.model_fields.items():
        value = getattr(model, name)
        comment = told.get(name, "") or (_summary(type(value)) if isinstance(value, BaseModel) else "")
        if choices := _choices(field.annotation):
            comment = f"{comment.removesuffix('.')}; {choices}" if comment else choices
        if comment != before:  # of several keys it stands above the first
            yield from textwrap.wrap(comment, WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")
        before = comment
        if isinstance(value, BaseModel):
            yield f"{indent}{name}:"
            yield from _lines(value, f"{indent}  ")
        else:
            yield f"{indent}{name}: {_plain(values[name])}"


def _plain(value: Any) -> str:
    """Return a value as YAML on one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6)
    return text.removesuffix("\n").removesuffix("\n...")


def _choices(annotation: Any) -> str:
    """Return what is allowed where that is one of a few words."""
    kinds = [annotation, *get_args(annotation)]
    words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    return f"allowed: {', '.join(map(str, words))}" if len(words) > 1 else ""


def _summary(kind: type[BaseModel]) -> str:
    """Return the first line of a model's docstring."""
    return _as_text(inspect.cleandoc(kind.__doc__ or "").partition("\n")[0])


def _attributes(docstring: str) -> dict[str, str]:
    """Return the entries of a docstring's section ``Attributes:``."""
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
