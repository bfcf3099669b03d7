"""The form of a deployment in the Prefect UI: every parameter has a description and one type."""

from typing import Annotated, Any

import pytest
from prefect import Flow
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import is_valid
from pydantic import Field, TypeAdapter

from embodyflow.orchestration.request.form_fields import FormField, field_of
from embodyflow.orchestration.request.request import RunRequest
from flows import cpgd, dapo, evaluate, gspo, ppo, sac, srpo
from flows.grpo import grpo

FLOWS = [grpo, ppo.ppo, sac.sac, dapo.dapo, srpo.srpo, gspo.gspo, cpgd.cpgd, evaluate.evaluate]


def schema_of(flow: Flow[..., Any]) -> dict[str, Any]:
    return parameter_schema(flow).model_dump()


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.name)
def test_each_parameter_has_a_description_and_one_type(flow: Flow[..., Any]) -> None:
    for name, shown in schema_of(flow)["properties"].items():
        assert len(shown["description"]) > 20, name
        assert shown["type"] in ("string", "integer", "array") and "anyOf" not in shown, name


def test_an_empty_field_means_the_default_and_wrong_values_are_refused() -> None:
    schema = schema_of(grpo)
    assert is_valid(RunRequest().parameters(), schema)
    assert is_valid(RunRequest("push", "rloo", 3, 1, "mine", None, ["trainer.epochs=2"]).parameters(), schema)
    wrong = {"iterations": 0, "seed": -1, "run_id": "../mine", "resume": "a b", "algorithm": "none", "overrides": [1]}
    for name, value in wrong.items():
        assert not is_valid(RunRequest().parameters() | {name: value}, schema), name
    assert schema_of(evaluate.evaluate)["required"] == ["policy"]


def test_the_annotation_changes_the_form_and_not_the_values() -> None:
    count = Annotated[int | None, Field(ge=1), FormField("Number of `things`", choices=())]
    adapter = TypeAdapter(count)
    assert adapter.json_schema() == {"type": "integer", "minimum": 1, "description": "Number of `things`"}
    assert (adapter.validate_python(None), adapter.validate_python(3)) == (None, 3)
    assert field_of(count).description == "Number of `things`"
    with pytest.raises(TypeError, match="has no FormField"):
        field_of(Annotated[int, Field(ge=1)])


def test_choices_hold_null_only_where_the_field_may_be_empty() -> None:
    required, optional = Annotated[str, FormField("", ["a"])], Annotated[str | None, FormField("", ["a"])]
    assert TypeAdapter(required).json_schema()["enum"] == ["a"]
    assert TypeAdapter(optional).json_schema()["enum"] == ["a", None]
