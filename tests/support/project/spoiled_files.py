"""Damage to a checkpoint's folder."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def rewritten(name: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    """Return a function that changes the content of a JSON file in a folder."""

    def rewrite(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        change(content)
        (folder / name).write_text(json.dumps(content))

    return rewrite
