"""The parameters of a flow as fields of the form in the Prefect UI and as lines of ``--help``."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_origin

from pydantic import GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import MISSING, CoreSchema

if TYPE_CHECKING:  # importing it takes a second, which each check of a configuration would wait for
    from prefect import Flow

FlowT = TypeVar("FlowT", bound="Flow[..., Any]")


@dataclass(frozen=True)
class FormField:
    """An annotation of a flow's parameter: its description and choices in the form.

    Prefect builds the form from the JSON schema of the flow's parameters. Pydantic writes ``int | None`` as a union
    with null, for which the form shows a switch and no field. This annotation leaves null out, so that the field has
    one type; :func:`with_form` makes an empty field valid.

    Attributes:
        description: Meaning, as Markdown.
        choices: Allowed values; empty for any.
    """

    description: str
    choices: Sequence[str] = ()

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the schema without null, with description and choices."""
        schema: dict[str, Any] = handler(core_schema)
        kinds = schema.pop("anyOf", [])
        for kind in kinds:
            if kind.get("type") != "null":
                schema |= kind
        if self.choices:
            # The form hides null, but Prefect checks an empty field against the enumeration.
            schema["enum"] = [*self.choices, *([None] if {"type": "null"} in kinds else [])]
        return schema | {"description": self.description}


def with_form(flow: FlowT) -> FlowT:
    """Give a flow the signature that Prefect builds its form from; return the flow.

    Prefect accepts null and an empty field for a parameter of one type only if the schema has no default, and Pydantic
    writes the default null of a parameter that is ``None``. The form's signature has Pydantic's sentinel instead.
    Calls of the flow are not affected.
    """
    signature = inspect.signature(flow.fn, eval_str=True)
    shown = [each.replace(default=MISSING) if each.default is None else each for each in signature.parameters.values()]
    flow.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    return flow


def field_of(annotation: Any) -> FormField:
    """Return the form field in an annotation such as ``Annotated[int, FormField(…)]``.

    Raises:
        TypeError: The annotation has none.
    """
    if get_origin(annotation) is Annotated:
        for each in get_args(annotation)[1:]:
            if isinstance(each, FormField):
                return each
    raise TypeError(f"{annotation}: has no FormField")
