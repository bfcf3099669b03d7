"""The pages that are generated: their tables are those of the source, and they leave nothing out."""

from collections.abc import Callable

import pytest

from docs.generator import benchmarks, captures, columns, metrics
from docs.generator.configuration import allowed
from docs.generator.markdown import escaped, table, without_roles


def test_the_page_of_benchmarks_shows_the_figures_as_they_are() -> None:
    problems: list[str] = []
    assert benchmarks.page(problems) == benchmarks.PAGE.read_text(), "run python -m docs.generator"
    assert not problems


@pytest.mark.parametrize("page", [columns.page, metrics.page], ids=["columns", "metrics"])
def test_every_column_and_metric_has_a_meaning(page: Callable[[list[str]], str]) -> None:
    problems: list[str] = []
    page(problems)
    assert not problems


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer", "minimum": 1}, "integer ≥ 1"),
        ({"type": "integer", "minimum": 0, "exclusiveMaximum": 2**31}, "integer ≥ 0, < 2^31"),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 2e6}, "number > 0, ≤ 2e+06"),
        ({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "null"}]}, "number > 0 or `null`"),
        ({"enum": ["cpu", "cuda"], "type": "string"}, "`cpu`, `cuda`"),
        ({"type": "array", "items": {"type": "string"}, "minItems": 1}, "list of texts, at least 1"),
        ({"type": "boolean"}, "`true`, `false`"),
    ],
)
def test_a_schema_in_words(schema: dict[str, object], words: str) -> None:
    assert allowed(schema) == words


def test_docstrings_become_markdown() -> None:
    assert without_roles(":class:`~a.b.C` and ``d`` are::") == "`C` and `d` are:"
    assert escaped("a <b> * `<c>`") == "a &lt;b> \\* `<c>`"
    assert table(("a",), [("b|c",)]).endswith("| b\\|c |")


def test_captures_of_the_terminal_are_replaced_and_fit_their_widths() -> None:
    shown = captures.captured(captures.PAGE)
    assert shown.keys() == {"80 columns", "120 columns", "pipe", "interrupt"}
    for name in ("80 columns", "120 columns"):
        assert max(map(len, shown[name])) < int(name.split()[0])
        assert shown[name][-1].startswith("training") and "━" in shown[name][-1]
    assert not any("━" in line for line in shown["pipe"])
    text = captures.PAGE.read_text()
    assert captures.with_captures(text, shown) == text
    other = captures.with_captures(text, {name: [name] for name in shown})
    assert other.count("columns\n```\n") == 2 and "━" not in other
    with pytest.raises(KeyError):
        captures.with_captures(text, {})
