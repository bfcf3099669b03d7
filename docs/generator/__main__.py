"""Write every generated page."""

import sys
from collections.abc import Callable
from pathlib import Path

from docs.generator import api, benchmarks, choices, columns, commands, configuration, metrics, pipelines

DOCS = Path(__file__).resolve().parents[1]

PAGES: dict[str, Callable[[list[str]], str]] = {
    "reference/choices.md": choices.page,
    "reference/columns.md": columns.page,
    "reference/commands.md": commands.page,
    "reference/configuration.md": configuration.page,
    "reference/metrics.md": metrics.page,
    "reference/nodes.md": pipelines.nodes_page,
    "reference/pipelines.md": pipelines.page,
    "benchmarks.md": benchmarks.page,
    **api.PAGES,
}


def main() -> int:
    """Write the pages; return 1 if the source leaves anything undocumented."""
    problems: list[str] = []
    for name, page in PAGES.items():
        of_page: list[str] = []
        text = page(of_page)
        problems += [f"docs/{name}: {problem}" for problem in of_page]
        path = DOCS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    print("\n".join(problems) or f"{len(PAGES)} pages written", file=sys.stderr if problems else sys.stdout)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
