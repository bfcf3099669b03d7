"""Escaping of text that the Prefect UI would otherwise read as Markdown and HTML."""

import re

# Characters that begin markup, a link or an entity anywhere in a line; and those that do at its start: lists, rules.
_ANYWHERE = re.compile(r"[\\`*_~\[\]<>&!|#@:$^={}]|(?<=[wW])\.")
_AT_START = re.compile(r"^(?P<indent>[ \t]*)(?P<number>\d*)(?P<mark>[-+.)]?)", re.MULTILINE)


def escape_markdown(text: str) -> str:
    """Return Markdown that shows a text as it is, with no markup, link, picture or HTML.

    A policy's generations are text of a stranger: a picture in them would make the reader's browser fetch it.

    Args:
        text: Any text. Its line breaks are kept, and spaces at the start of a line become no-break spaces.
    """
    return _AT_START.sub(_escape_start, _ANYWHERE.sub(r"\\\g<0>", text.replace("\r", "\n")))


def escape_cell(text: str) -> str:
    """Return :func:`escape_markdown` on one line, for a cell of a table that is written in Markdown."""
    return escape_markdown(" ".join(text.split()))


def _escape_start(match: re.Match[str]) -> str:
    indent = match["indent"].expandtabs(4).replace(" ", "\N{NO-BREAK SPACE}")  # four spaces would begin a code block
    return indent + match["number"] + (f"\\{match['mark']}" if match["mark"] else "")
