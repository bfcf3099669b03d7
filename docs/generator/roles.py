"""A Griffe extension: Sphinx roles and literal blocks of docstrings become Markdown."""

import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from docs.generator.markdown import without_roles


class Roles(griffe.Extension):
    """Rewrites every docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = without_roles(obj.docstring.value)
