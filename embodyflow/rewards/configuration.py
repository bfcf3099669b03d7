"""Which reward function scores a response, and which manager runs it.

Two choices, each a union told apart by ``name``: what is right (``function``) and how it is asked (``manager``).
"""

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from embodyflow.references import resolve


class _Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ExactMatchConfig(_Config):
    """The text after a marker is the ground truth, spaces around it aside.

    Attributes:
        marker: what the final answer stands after, its last occurrence; ``null`` takes the whole response.
    """

    name: Literal["exact_match"] = "exact_match"
    marker: Annotated[str, Field(min_length=1)] | None = "##"


class GSM8KConfig(_Config):
    """The number on the line after the last ``####`` is the ground truth's (Cobbe et al. 2021, arXiv:2110.14168).

    The ground truth is a number or a whole worked answer that ends so.
    """

    name: Literal["gsm8k"] = "gsm8k"


class RegexConfig(_Config):
    """What the pattern's group matches is the ground truth, spaces around it aside.

    Attributes:
        pattern: of Python's ``re``, with one group; its last match counts.
    """

    name: Literal["regex"] = "regex"
    pattern: str

    @field_validator("pattern")
    @classmethod
    def _has_one_group(cls, pattern: str) -> str:
        try:
            num_groups = re.compile(pattern).groups
        except re.error as error:
            raise ValueError(f"is no regular expression: {error}") from error
        if num_groups != 1:
            raise ValueError(f"has {num_groups} groups; allowed is one, around the answer")
        return pattern


class CustomConfig(_Config):
    """A function of one's own.

    Attributes:
        function: ``"module:function"`` of ``(sample, **kwargs) -> Score``; with the manager ``batch`` of
            ``(samples, **kwargs) -> list of Score``.
        kwargs: passed on.
    """

    name: Literal["custom"] = "custom"
    function: str
    kwargs: dict[str, Any] = {}

    @field_validator("function")
    @classmethod
    def _exists(cls, function: str) -> str:
        if ":" not in function:
            raise ValueError("names no module; write 'module:function'")
        try:
            found = resolve(function)
        except ImportError as error:
            raise ValueError(str(error)) from error
        if not callable(found):
            raise ValueError(f"is a {type(found).__name__}; allowed is a function")
        return function


FunctionConfig = Annotated[
    ExactMatchConfig | GSM8KConfig | RegexConfig | CustomConfig,
    Field(discriminator="name"),
]


class NaiveConfig(_Config):
    """One sample after the other in the calling process, without a time limit: for functions that are quick."""

    name: Literal["naive"] = "naive"


class BatchConfig(_Config):
    """All samples in one call of a custom function."""

    name: Literal["batch"] = "batch"


ManagerConfig = Annotated[NaiveConfig | BatchConfig, Field(discriminator="name")]


class RewardConfig(_Config):
    """Where rewards come from.

    Attributes:
        function: says what a response is worth.
        manager: runs it.
    """

    function: FunctionConfig
    manager: ManagerConfig = NaiveConfig()

    @model_validator(mode="after")
    def _fit(self) -> "RewardConfig":
        if self.manager.name == "batch" and self.function.name != "custom":
            raise ValueError(
                f"manager.name=batch passes all samples at once, which function.name={self.function.name} does not "
                "take; allowed is custom"
            )
        return self
