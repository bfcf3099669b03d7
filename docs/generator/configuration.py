"""The page of configuration keys, from the models that check them."""

import importlib
import json
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel, TypeAdapter

from docs.generator.markdown import code, document, escaped, first_paragraph, table, without_roles
from embodyflow import policies
from embodyflow.config.base import RunName
from embodyflow.config.composition.described import meanings
from embodyflow.config.jobs import JOBS

PATTERNS = {TypeAdapter(RunName).json_schema()["pattern"]: "letters, digits, `.`, `_` and `-`"}
"""Patterns in words."""

RUN = "Run"
"""Title of the section with the keys that stand alone."""


@dataclass
class Key:
    """One key as one model has it.

    Attributes:
        name: Full name, such as ``trainer.lora.rank``.
        values: Allowed values as Markdown.
        default: Its default as Markdown; a dash where the YAML files set it.
        meaning: Meaning as one or more sentences.
        jobs: Kinds of jobs that have it.
    """

    name: str
    values: str
    default: str
    meaning: str
    jobs: list[str] = field(default_factory=list)


@dataclass
class Section:
    """The keys of one model.

    Attributes:
        path: The section's key, such as ``rollout.generation``; empty for the run itself.
        choice: Name of the kind that the section is, or belongs to, such as ``pi0``; None where there is one kind.
        is_kind: Whether its own ``name`` tells it apart, or that of a section above.
        summaries: Summary of the section by kind of job.
        keys: Its keys by name.
    """

    path: str
    choice: str | None
    is_kind: bool = False
    summaries: dict[str, str] = field(default_factory=dict)
    keys: dict[str, Key] = field(default_factory=dict)


def page(problems: list[str]) -> str:
    """Return the page.

    Args:
        problems: Takes a line for a key has no meaning.
    """
    sections = collect()
    keys = [key for section in sections.values() for key in section.keys.values()]
    if missing := sorted({key.name for key in keys if not key.meaning}):
        problems.append(f"no meaning for {', '.join(missing)}")
    count = len({key.name for key in keys})
    return document(
        "Configuration",
        f"The {count} keys of a run, from the models that check them. The files under `configs/` give most keys a "
        "value; the column Default is the value of a key that no file sets. A dash means that the files set it. "
        "`embodyflow config experiment=push` prints every key of one run with its value and meaning. "
        "Override any of them on the command line: `trainer.epochs=2`.",
        "A section with a `name` is one of several kinds. Replace it as a whole with "
        "`section={name:other,key:value}`. [Choices](choices.md) lists the files under `configs/`.",
        *(_render(section) for section in sections.values()),
    )


def collect() -> dict[str, Section]:
    """Return all sections of all kinds of jobs, by title, sections before what is in them."""
    sections: dict[str, Section] = {}
    for job, kind in JOBS.items():
        _collect(kind, "", job, sections)
    order = list(dict.fromkeys(section.path.partition(".")[0] for section in sections.values()))
    return dict(sorted(sections.items(), key=lambda item: order.index(item[1].path.partition(".")[0])))


def _collect(
    kind: type[BaseModel], path: str, job: str, sections: dict[str, Section], choice: str | None = None
) -> None:
    own = _choice(kind)
    choice = own or choice
    section = sections.setdefault(f"{path} {choice}", Section(path, choice, is_kind=own is not None))
    section.summaries[job] = first_paragraph(kind.__doc__)
    described = meanings(kind)
    properties = kind.model_json_schema()["properties"]
    for name, info in kind.model_fields.items():
        if name == "name" and own:
            continue
        full = f"{path}.{name}" if path else name
        parts = list(_models(info.annotation))
        default = "–" if info.is_required() else code(_plain(properties[name].get("default")))
        meaning = _sentence(without_roles(described.get(name, "")))
        if not parts:
            key = Key(full, allowed(properties[name]), default, meaning, [job])
            if key.values != code("null"):  # a job that has no such section still has the key
                _merge(section, key)
        elif type(None) in get_args(info.annotation):
            meaning = meaning or _sentence(first_paragraph(parts[0].__doc__))
            _merge(section, Key(full, f"a section or {code('null')}", default, meaning, [job]))
        for part in parts:
            _collect(part, full, job, sections, choice)


def _merge(section: Section, key: Key) -> None:
    """Add a key; the same key of another kind of job is one with it, of another meaning it is one beside it."""
    known = section.keys.setdefault(f"{key.name} {key.values} {key.meaning}", key)
    if known is not key:
        known.jobs += key.jobs


def _choice(kind: type[BaseModel]) -> str | None:
    """Return the one value of a model's ``name`` that distinguishes it from others."""
    info = kind.model_fields.get("name")
    words = get_args(info.annotation) if info is not None and get_origin(info.annotation) is Literal else ()
    return str(words[0]) if len(words) == 1 else None


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models that a value of this type may be."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from _kinds(annotation) or (annotation,)
    elif get_origin(annotation) is Annotated:
        yield from _models(get_args(annotation)[0])
    elif get_origin(annotation) not in (dict, tuple, list):
        for each in get_args(annotation):
            yield from _models(each)


def _kinds(model: type[BaseModel]) -> list[type[BaseModel]]:
    """Return the models that extend one and have a name of their own, as the policies of a kind of job do."""
    if _choice(model) is not None or "name" not in model.model_fields:
        return []
    for module in pkgutil.walk_packages(policies.__path__, f"{policies.__name__}."):
        if ".configuration_" in module.name:
            importlib.import_module(module.name)
    named = [each for each in _descendants(model) if _choice(each) is not None]
    return [each for each in named if each.__module__.startswith("embodyflow.")]


def _descendants(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for each in model.__subclasses__():
        yield each
        yield from _descendants(each)


def allowed(schema: dict[str, Any]) -> str:
    """Return the values that a JSON schema allows, in a few words of Markdown."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(allowed(each) for each in schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(code(_plain(word)) for word in schema["enum"])
    if "const" in schema:
        return code(_plain(schema["const"]))
    match schema.get("type"):
        case "boolean":
            return f"{code('true')}, {code('false')}"
        case "null":
            return code("null")
        case "integer" | "number" as kind:
            return f"{'integer' if kind == 'integer' else 'number'}{_range(schema)}"
        case "array":
            least = schema.get("minItems")
            return f"list of {_plural(schema.get('items', {}))}{f', at least {least}' if least else ''}"
        case "object":
            return "mapping"
        case "string":
            pattern = schema.get("pattern")
            return "text" if pattern is None else PATTERNS.get(pattern, f"text matching {code(pattern)}")
    return "anything"


def _plural(schema: dict[str, Any]) -> str:
    return {"string": "texts", "integer": "integers", "number": "numbers"}.get(schema.get("type", ""), "values")


def _bound(value: float) -> str:
    """Return a bound; a large integer is a power of two."""
    return f"2^{value.bit_length() - 1}" if isinstance(value, int) and value >= 10**6 else f"{value:g}"


def _range(schema: dict[str, Any]) -> str:
    bounds = [
        f"{sign} {_bound(schema[name])}"
        for name, sign in (
            ("minimum", "≥"),
            ("exclusiveMinimum", ">"),
            ("maximum", "≤"),
            ("exclusiveMaximum", "<"),
        )
        if name in schema
    ]
    return f" {', '.join(bounds)}" if bounds else ""


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value or '""'
    text: str = yaml.safe_dump(json.loads(json.dumps(value)), default_flow_style=True, width=10**6)
    return text.removesuffix("\n").removesuffix("\n...")


def _sentence(text: str) -> str:
    """Return a meaning that begins with a capital letter and ends with a period."""
    if not text:
        return ""
    text = escaped(text)
    text = text if text.startswith("`") else text[0].upper() + text[1:]
    return text if text.endswith((".", "?")) else f"{text}."


def _render(section: Section) -> str:
    level = "##" if "." not in section.path and section.choice is None else "###"
    title = code(section.path) if section.path else RUN
    if section.choice:
        title += f" {'named' if section.is_kind else 'of'} {code(section.choice)}"
    parts = [f"{level} {title}", _summary(section)]
    if section.keys:
        uses = [_jobs(key) for key in section.keys.values()]
        mixed = len(set(uses)) > 1
        if not mixed and uses[0] != "all":
            parts.append(f"Only in {uses[0]} jobs.")
        header = ("Key", "Allowed", "Default", "Meaning", *(("Jobs",) if mixed else ()))
        rows = [
            (_breakable(key.name), key.values, key.default, key.meaning, *((use,) if mixed else ()))
            for key, use in zip(section.keys.values(), uses, strict=True)
        ]
        parts.append(f'<div class="keys" markdown>\n\n{table(header, rows)}\n\n</div>')
    return "\n\n".join(parts)


def _breakable(name: str) -> str:
    """Return a key as code that may be broken after its dots: narrow screens then show more of its meaning."""
    return f"<code>{name.replace('.', '.<wbr>')}</code>"


def _summary(section: Section) -> str:
    """Return the summary of a section, as a list where kinds of jobs differ."""
    if not section.path:
        return "The keys that stand in no section."
    if len(set(section.summaries.values())) == 1:
        return next(iter(section.summaries.values()))
    return "\n".join(f"- In {job} jobs: {summary}" for job, summary in section.summaries.items())


def _jobs(key: Key) -> str:
    return "all" if len(key.jobs) == len(JOBS) else " and ".join(key.jobs)
