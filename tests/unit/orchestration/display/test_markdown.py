"""A policy's generations in the Prefect UI are shown as they are, whatever Markdown or HTML they hold."""

import asyncio
import html
import json
import re
from types import SimpleNamespace
from uuid import uuid4

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from prefect.client.schemas.actions import ArtifactCreate

from embodyflow.orchestration.display.artifacts import Artifacts
from embodyflow.orchestration.display.markdown import escape_cell, escape_markdown
from embodyflow.orchestration.display.reporting import summary_table

HOSTILE = [
    "![x](http://192.0.2.1/pixel.png)",
    "[click](javascript:alert(1))",
    "<img src=x onerror=alert(1)>",
    "<script>alert(1)</script>",
    "text\n<div onclick=alert(1)>\n</div>",
    "http://192.0.2.1/ https://a.b www.a.bc me@a.bc",
    "&lt;b&gt; &amp; &#60;",
    "# heading\n- item\n+ item\n1. item\n2) item\n> quote\n---\n===\n***",
    "```python\ncode\n```\n~~~\n    indented\n\tindented",
    "| a | b |\n|---|---|\n| 1 | 2 |",
    "a | b || \\| c \\",
    "\\[x](http://a.b) \\\\![y](z)",
    "[x]: http://a.b\n[x]",
    "**bold** __bold__ *it* ~~gone~~ `code`",
    "text\n---\ntext\n-",
]

PIECES = [*"\\`*_~[]()<>&!|#@:-+=.1 \t\n\rax", "http://", "www.", "    "]


def shown(markdown: str) -> str:
    """Return the text of rendered Markdown, after checking that it holds no markup but paragraphs and line breaks."""
    rendered = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(markdown)
    assert set(re.findall(r"<[^>]*>", rendered)) <= {"<p>", "</p>", "<br />"}, rendered
    return html.unescape(re.sub(r"<[^>]*>", "", rendered))


def words(text: str) -> list[str]:
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").split()


@given(st.text() | st.lists(st.sampled_from(PIECES)).map("".join))
@pytest.mark.parametrize("escape", [escape_markdown, escape_cell])
@example("".join(HOSTILE))
def test_any_text_is_shown_as_it_is(escape, text: str) -> None:  # type: ignore[no-untyped-def]
    assert words(shown(escape(text))) == words(text)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_as_it_is(text: str) -> None:
    assert words(shown(escape_markdown(text))) == words(text)


@pytest.mark.parametrize("text", HOSTILE)
def test_no_address_is_left_for_the_ui_to_turn_into_a_link(text: str) -> None:
    """GitHub's Markdown, which the UI renders, also links bare addresses."""
    assert not re.search(r"https?://|www\.|\w@\w", escape_markdown(text), re.IGNORECASE)


def test_numbers_and_plain_words_stay_readable() -> None:
    assert escape_markdown("The answer is 42.5, not -3 (1/2).") == "The answer is 42.5, not -3 (1/2)."


@pytest.mark.parametrize("text", HOSTILE)
def test_a_table_artifact_escapes_its_cells(text: str) -> None:
    tables: list[list[dict[str, object]]] = []

    class Client:
        async def create_artifact(self, wanted: ArtifactCreate) -> SimpleNamespace:
            tables.append(json.loads(wanted.data))
            return SimpleNamespace(id=uuid4())

    artifacts = Artifacts("run", Client(), uuid4())  # type: ignore[arg-type]
    artifacts.put_table("examples", [{"response": text, "words": [text, 0.123456], "reward": 1, "flag": True}], "")
    asyncio.run(artifacts.publish_pending())
    [[row]] = tables
    assert words(shown(str(row["response"]))) == words(text)
    assert words(shown(str(row["words"]))) == words(f"{text}, 0.1235")
    assert (row["reward"], row["flag"]) == (1, True)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_summary_keeps_its_columns_whatever_a_value_holds(text: str) -> None:
    rendered = MarkdownIt("commonmark").enable("table").render(summary_table({"run_id": text, "goals": 3}))
    cells = re.findall(r"<td>(.*?)</td>", rendered)
    assert [html.unescape(cell).split() for cell in cells] == [["run", "id"], text.split(), ["goals"], ["3"]]
