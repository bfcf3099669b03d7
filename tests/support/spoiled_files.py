"""Ways to spoil a checkpoint's folder."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def rewritten(name: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    """Return what changes the content of a folder's JSON file."""

    def rewrite(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        change(content)
        (folder / name).write_text(json.dumps(content))

    return rewrite
