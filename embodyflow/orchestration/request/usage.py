"""What ``python -m flows.<name> --help`` says: the flow's own parameters, as the Prefect UI's form has them too."""

import inspect
import sys
import textwrap
from collections.abc import Sequence
from typing import Annotated, Any, get_args, get_origin

from prefect import Flow
from pydantic.fields import FieldInfo

WIDTH = 100


def answer_help(flow: Flow[..., Any], words: Sequence[str], overrides: str) -> None:
    """Print how a flow is used and end the process, if that is asked for.

    Args:
        flow: run by ``python -m flows.<name>``.
        words: of the command line.
        overrides: what every word means that is none of the flow's parameters.
    """
    if {"-h", "--help"} & set(words):
        print(usage(flow, overrides))
        sys.exit(0)


def usage(flow: Flow[..., Any], overrides: str) -> str:
    """Return how a flow is used; see :func:`answer_help`."""
    parameters = inspect.signature(flow.fn).parameters
    told = {name: _meaning(each) for name, each in parameters.items() if name != "overrides"}
    column = max(map(len, told)) + 4
    lines = [f"usage: python -m flows.{flow.name} [key=value …]", "", str(flow.description), ""]
    for name, meaning in told.items():
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
    """Return the description that an annotation such as ``Annotated[…] | None`` carries."""
    if get_origin(annotation) is Annotated:
        return next(each for each in annotation.__metadata__ if isinstance(each, FieldInfo))
    return next(_field(each) for each in get_args(annotation) if get_origin(each) is Annotated)
