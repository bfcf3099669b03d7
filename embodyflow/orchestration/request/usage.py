"""The help text of ``python -m flows.<name>``: the same parameters as in the form of the Prefect UI."""

import inspect
import sys
import textwrap
from collections.abc import Sequence
from typing import Annotated, Any, get_args, get_origin

from prefect import Flow
from pydantic.fields import FieldInfo

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
    field = _field(parameter.annotation)
    extra = field.json_schema_extra
    choices = extra.get("enum") if isinstance(extra, dict) else None
    meaning = f"{field.description}: {', '.join(map(str, choices))}" if isinstance(choices, list) else field.description
    default = parameter.default
    if default is inspect.Parameter.empty:
        return f"{meaning} (must be set)"
    return str(meaning) if default is None else f"{meaning} (default: {default})"


def _field(annotation: Any) -> FieldInfo:
    """Return the field of an annotation such as ``Annotated[…] | None``."""
    if get_origin(annotation) is Annotated:
        return next(each for each in annotation.__metadata__ if isinstance(each, FieldInfo))
    return next(_field(each) for each in get_args(annotation) if get_origin(each) is Annotated)
