"""Words of the command line, and texts of others that a terminal shows: names of files, logs, a policy's words."""

import re
from pathlib import Path

import typer

_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters without line ends and tabs, changes of the direction of writing, and bytes that are no UTF-8."""


def plain(text: str) -> str:
    r"""Return a text whose control characters are escapes, such as ``\x1b``; line ends and tabs stay.

    A terminal obeys such characters: they move its cursor, hide text, or write to the clipboard of its user.
    """
    return _OBEYED.sub(lambda found: repr(found[0])[1:-1], text)


def in_one_line(text: str) -> str:
    """Return :func:`plain` with line ends and tabs as escapes too."""
    return plain(text).replace("\n", "\\n").replace("\t", "\\t")


def given_path(word: str | Path) -> Path:
    """Return the path in a word of the command line.

    Raises:
        BadParameter: The word is blank, which is what a shell makes of a variable that is not set and would mean the
            current folder, or it has a control character.
    """
    text = str(word)
    if not text.strip() or re.search(r"[\x00-\x1f\x7f-\x9f]", text):
        raise typer.BadParameter("must be neither blank nor contain control characters, such as a line break")
    return Path(word)
