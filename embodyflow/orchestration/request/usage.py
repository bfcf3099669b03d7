"""The help text of ``python -m flows.<name>``: the same parameters as in the form of the Prefect UI."""

import inspect
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from prefect import Flow

from embodyflow.orchestration.request.form_fields import field_of

WIDTH = 100


def answer_help(flow: Flow[..., Any], words: Sequence[str], overrides: str) -> None:
    """Print a flow's help text and exit if the command line asks for it.

    Args:
        flow: Flow that ``python -m flows.<name>`` runs.
        words: Words of the command line.
        overrides: Explanation of words that are not parameters of the flow.
    """
    if {"-h", "--help"} & set(words):
        print(usage(flow, overrides))
        sys.exit(0)


def usage(flow: Flow[..., Any], overrides: str) -> str:
    """Return a flow's help text; see :func:`answer_help`."""
    parameters = inspect.signature(flow.fn).parameters
    meanings = {name: _meaning(each) for name, each in parameters.items() if name != "overrides"}
    column = max(map(len, meanings)) + 4
    lines = [f"usage: python -m flows.{flow.name} [key=value …]", "", str(flow.description), ""]
    for name, meaning in meanings.items():
        first, later = f"  {name:<{column - 2}}", " " * column
        lines += textwrap.wrap(meaning, WIDTH, initial_indent=first, subsequent_indent=later)
    return "\n".join([*lines, "", *textwrap.wrap(overrides, WIDTH)])


def _meaning(parameter: inspect.Parameter) -> str:
    field = field_of(parameter.annotation)
    meaning = field.description.replace("`", "")
    if field.choices:
        meaning = f"{meaning}: {', '.join(field.choices)}"
    default = parameter.default
    if default is inspect.Parameter.empty:
        return f"{meaning} (must be set)"
    return meaning if default is None else f"{meaning} (default: {default})"
