"""Counts sentence shapes that the style guide (CONTRIBUTING.md, Plain English) rules out.

python tests/support/project/plain_english.py embodyflow/workers tasks     # lists what to rewrite; nothing means clean
python tests/support/project/plain_english.py --count                      # totals over the whole tree
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
ROOMS = ("embodyflow", "flows", "pipelines", "tasks", "envs", "benchmarks", "examples")
ENTRY = re.compile(r"^ +\*{0,2}[\w.`]+(?:, \*{0,2}[\w.`]+)*(?: \([^)]*\))?: (?P<text>\S.*)$")
PROSE = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
SECTIONS = ("Args:", "Attributes:", "Returns:", "Yields:", "Raises:", "Example:", "Note:")

FRAGMENT = re.compile(r"^(of|that|to|which|whose|by|in|from|as|for|where|what|with) ", re.IGNORECASE)
FIRST_LINES = re.compile(r"^(Return (what|which|whether)|Say |Have |Tell |Look |Who(ever)? )")
PHRASES = re.compile(
    r"\b(by custom|to the bit|[Ww]hoever|of one's own|under whose|[Nn]umbers that are none|(is|are) none\b|"
    r"in its middle|"
    r"(is|are|was|were) told|(is|are) to be|to be had|it is that|(is|be|are) let |borne|have had|anew|"
    r"(done|made|run|built|played|started|asked|written) again|brought to the disk|by itself alone)\b"
)


@dataclass(frozen=True)
class Finding:
    """A place to rewrite: a file, a line number, the rule and the text."""

    path: Path
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        """Return the finding as a line that editors jump to."""
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


def findings(path: Path) -> Iterator[Finding]:
    """Yield what the guide rules out in the docstrings and comments of a Python file."""
    source = path.read_text(encoding="utf-8")
    for line, text in _docstrings(ast.parse(source)):
        yield from _of_docstring(path, line, text)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in PROSE and (found := PHRASES.search(token.string)):
            line = token.start[0] + token.string[: found.start()].count("\n")
            yield Finding(path, line, f"phrase {found.group(0)!r}", source.splitlines()[line - 1].strip())


def entries(path: Path) -> int:
    """Return how many arguments and attributes the file documents."""
    docs = _docstrings(ast.parse(path.read_text(encoding="utf-8")))
    return sum(1 for _, text in docs for _ in _entries(text))


def python_files(rooms: tuple[str, ...] = ROOMS, root: Path = ROOT) -> list[Path]:
    """Return the Python files of the rooms, or the files themselves that are named."""
    given = [root / room for room in rooms]
    return sorted(file for each in given for file in ([each] if each.is_file() else each.rglob("*.py")))


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of every string that stands as a statement: docstrings and attribute docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def _entries(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each documented argument and attribute of a docstring."""
    section = ""
    for number, line in enumerate(text.splitlines()):
        if line.strip() in SECTIONS:
            section = line.strip()
        elif section in ("Args:", "Attributes:") and (found := ENTRY.match(line)):
            yield number, found.group("text")


def _of_docstring(path: Path, line: int, text: str) -> Iterator[Finding]:
    if found := FIRST_LINES.match(text):
        yield Finding(path, line, f"first line {found.group(0)!r}", text.partition("\n")[0])
    for offset, entry in _entries(text):
        if FRAGMENT.match(entry):
            yield Finding(path, line + offset, "fragment", entry)


def main(words: list[str]) -> int:
    """Print findings, or with ``--count`` how many there are by rule; return 1 if there are any."""
    rooms = tuple(word for word in words if not word.startswith("--")) or ROOMS
    files = python_files(rooms, Path.cwd())
    found = [finding for path in files for finding in findings(path)]
    if "--count" in words:
        counts = Counter(finding.rule.split()[0] for finding in found)
        print(f"{len(files)} files, {sum(map(entries, files))} documented arguments: {dict(counts)}")
    else:
        print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
