"""The page of scenarios: every scenario has a test, and every test that it names exists and is what the page says."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "explanation" / "scenarios.md"
HEADING = ("Scenario", "What happens", "Test")
NAMED = re.compile(r"`([\w/]+\.py)::(test_\w+)`")


def rows() -> list[tuple[str, ...]]:
    """Return the cells of the rows of all tables."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    cells = [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in lines]
    return [row for row in cells if row != HEADING]


@cache
def slowness_of(path: str) -> dict[str, bool]:
    """Return the test functions of a file below ``tests``, and whether each is slow."""
    tree = ast.parse((ROOT / "tests" / path).read_text())
    marks = [ast.unparse(node.value) for node in tree.body if isinstance(node, ast.Assign) and _is_marks(node)]
    whole = any("mark.slow" in each for each in marks)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    return {
        each.name: whole or any("mark.slow" in ast.unparse(mark) for mark in each.decorator_list) for each in functions
    }


def _is_marks(node: ast.Assign) -> bool:
    return ast.unparse(node.targets[0]) == "pytestmark"


def test_every_scenario_has_an_outcome_and_a_test() -> None:
    assert len(rows()) > 60
    for row in rows():
        assert len(row) == 3 and all(row), row
        assert NAMED.search(row[2]), row[0]


def test_every_test_that_the_page_names_exists_and_is_slow_where_the_page_says_so() -> None:
    wrong = []
    for *_, cell in rows():
        for part in cell.split("; "):
            for path, name in NAMED.findall(part):
                if slowness_of(path).get(name) is not part.startswith("slow: "):
                    wrong.append(f"{path}::{name}")
    assert not wrong
