"""A Griffe extension: Sphinx roles and literal blocks of docstrings become Markdown."""

import re
from typing import Any

import griffe


class Roles(griffe.Extension):
    """Rewrites every docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """Return a docstring whose roles and double backticks are inline code and whose ``::`` blocks are fenced."""
    text = re.sub(r":\w+:`~(?:[\w.]*\.)?(\w+)`", r"`\1`", text)
    text = re.sub(r":\w+:`([^`]*)`", r"`\1`", text)
    return re.sub(r"::$", ":", text, flags=re.MULTILINE)
