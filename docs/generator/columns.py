"""The page of columns, from the docstring of ``embodyflow.types``."""

import inspect
import re
from collections.abc import Iterator

import embodyflow.types
from docs.generator.markdown import code, document, escaped, table, without_roles
from embodyflow.columns import COLUMNS, INTERNAL

_ENTRY = re.compile(r"(?P<names>\w+(?:, \w+)*) +(?P<type>\w+) +(?P<shape>\[[^\]]*\])(?: +(?P<meaning>.*))?")


def page(problems: list[str]) -> str:
    """Return the page.

    Args:
        problems: Takes a line for a column that the source knows is not described.
    """
    parts = list(_parts(inspect.cleandoc(embodyflow.types.__doc__ or "")))
    text = "\n\n".join(parts[1:])
    if missing := sorted(name for name in COLUMNS - INTERNAL.keys() if not re.search(rf"`{name}`", text)):
        problems.append(f"embodyflow/types.py describes no column {', '.join(missing)}")
    inside = table(("Column", "Meaning"), [(code(name), meaning) for name, meaning in INTERNAL.items()])
    return document(
        "Columns",
        f"{parts[0]} This page is the docstring of `embodyflow.types`.",
        *parts[1:],
        f"## Inside the machinery\n\nThese names are taken too; one part of a run adds and reads them.\n\n{inside}",
    )


def _parts(docstring: str) -> Iterator[str]:
    """Yield paragraphs, and literal blocks as tables."""
    for paragraph in re.split(r"\n\n", docstring):
        if paragraph.startswith("    "):
            yield table(("Column", "Type", "Shape", "Meaning"), _rows(inspect.cleandoc(paragraph)))
        else:
            yield without_roles(paragraph)


def _rows(block: str) -> list[tuple[str, str, str, str]]:
    rows: list[tuple[str, str, str, str]] = []
    for line in block.splitlines():
        if not line.startswith(" ") and (found := _ENTRY.fullmatch(line)):
            names = ", ".join(code(name) for name in found["names"].split(", "))
            rows.append((names, found["type"], code(found["shape"]), escaped(without_roles(found["meaning"] or ""))))
        elif rows:
            names, dtype, shape, meaning = rows[-1]
            rows[-1] = (names, dtype, shape, f"{meaning} {escaped(without_roles(line.strip()))}".strip())
        else:
            raise LookupError(f"embodyflow/types.py: {line!r} is no column")
    return rows
