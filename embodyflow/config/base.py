"""The base class of the configuration models and the types that their fields share."""

import unicodedata
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from embodyflow.references import check_function

PositiveInt = Annotated[int, Field(ge=1, strict=True)]
PositiveFloat = Annotated[float, Field(gt=0)]
LearningRate = Annotated[float, Field(gt=0, le=100)]
"""The step size of an optimizer; a larger one is a slip of the exponent."""
Fraction = Annotated[float, Field(ge=0, le=1)]


def _of_one_line(place: str) -> str:
    if not place.strip() or any(_is_control(character) for character in place):
        raise ValueError("must be neither blank nor contain control characters, such as a line break")
    return place


def _is_control(character: str) -> bool:
    """Return True for control characters other than NUL, which all text of a configuration is checked for."""
    return character != "\0" and unicodedata.category(character) == "Cc"


Place = Annotated[str, Field(min_length=1), AfterValidator(_of_one_line)]
"""A file, folder or function; an empty one is what a shell makes of a variable that is not set."""
RUN_NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
"""Names that stay inside the folder of all runs: no separators, and no dot at the start."""
RunName = Annotated[str, Field(pattern=RUN_NAME_PATTERN)]


def _checked(reference: str) -> str:
    check_function(reference)
    return reference


FunctionName = Annotated[str, AfterValidator(_checked)]
"""Function ``module:function`` that this process can import."""


class Config(BaseModel):
    """Base of the configuration models: frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
