"""The report of a run in the Prefect UI: one page, whose sections always stand in the same order.

The UI lists the artifacts of a flow run by their random ids. So everything that a person reads first is in one.
"""

import base64
from collections.abc import Callable
from enum import Enum

from embodyflow.orchestration.display.markdown import escape_cell

MAX_REPORT_BYTES = 4_000_000
"""Largest size of a report; pictures beyond it are named and not shown."""
MAX_PICTURE_BYTES = 400_000
"""Largest size of an animation in a report, before base64."""

Content = str | Callable[[], str]
"""Markdown, or a function that returns it."""


class Section(Enum):
    """The sections of a report, in their order; the values are the headings."""

    RESULT = "Before and after training"
    RATES = "Success rates"
    BEFORE = "Episodes before training"
    AFTER = "Episodes after training"
    CURVE = "Learning curve"
    PLAYED = "Successes and failures"
    ENVIRONMENTS = "Environments"
    FOLDER = "Folder"


class Report:
    """Collects the sections of a report, each of one or more named parts, and renders them."""

    def __init__(self) -> None:
        self._parts: dict[Section, dict[str, Content]] = {}

    def put(self, section: Section, content: Content, part: str = "") -> None:
        """Replace a part of a section. A function is called by :meth:`render`, once."""
        self._parts.setdefault(section, {})[part] = content

    def render(self) -> str:
        """Return the report as Markdown of at most :data:`MAX_REPORT_BYTES`.

        Calls functions, so it may take time. Callers run it in a thread while others call :meth:`put`.
        """
        room, lines = MAX_REPORT_BYTES, []
        for section in Section:
            parts = self._parts.get(section, {})
            if parts:
                lines.append(f"## {section.value}")
            for part, content in list(parts.items()):
                markdown = content if isinstance(content, str) else content()
                if parts[part] is content:  # no newer one was put meanwhile
                    parts[part] = markdown
                if len(markdown) > room:
                    markdown = f"{escape_cell(part)}: not shown, since the report is full; see the run's folder."
                room -= len(markdown)
                lines.append(markdown.rstrip("\n"))
        return "\n\n".join(lines) + "\n"


def picture(content: bytes, kind: str, caption: str) -> str:
    """Return Markdown that shows a picture, which it contains; its caption is the picture's text for the blind.

    Args:
        content: The file.
        kind: Subtype of the media type ``image``, such as ``"png"``.
        caption: Any text.
    """
    return f"![{escape_cell(caption)}](data:image/{kind};base64,{base64.b64encode(content).decode()})"
