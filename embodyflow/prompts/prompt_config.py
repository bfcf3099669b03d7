"""Where prompts come from, and what becomes of those that are too long."""

import string
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Fraction = Annotated[float, Field(gt=0, lt=1)]


class _Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ArithmeticConfig(_Config):
    """Sums of two numbers, made up by :mod:`embodyflow.prompts.arithmetic`.

    Attributes:
        num_digits: of each of the two numbers; the first digit is not 0.
        validation_fraction, demo_fraction: of the pairs of numbers, for these splits; the rest is for training.
        split_seed: which pair is in which split; apart from the run's seed, so that runs are tested on the same sums.
    """

    name: Literal["arithmetic"] = "arithmetic"
    num_digits: Annotated[int, Field(ge=1, le=3, strict=True)] = 2
    validation_fraction: Fraction = 0.125
    demo_fraction: Fraction = 0.375
    split_seed: Annotated[int, Field(ge=0, strict=True)] = 0

    @model_validator(mode="after")
    def _something_is_left(self) -> "ArithmeticConfig":
        taken = self.validation_fraction + self.demo_fraction
        if taken >= 1:
            raise ValueError(f"validation_fraction + demo_fraction = {taken:g} leaves no pairs; allowed is less than 1")
        return self


class RowsConfig(_Config):
    """Prompts from files: JSON lines, parquet, Arrow, or folders of Hugging Face datasets.

    Attributes:
        data_source: names the dataset, for scores by source.
        train, validation, demo: files of these splits; a split may be empty.
        template: the prompt as text, columns in braces: ``"{question}"``; or ``null`` with ``messages_column``.
        messages_column: holds a chat, a list of ``{"role": …, "content": …}``.
        chat: the template makes a user's message rather than plain text.
        system: a message before the chat's first.
        ground_truth_column: what the reward function compares with.
        answer: of the ground truth, ``whole`` or what stands after its last ``####`` (``gsm8k``).
        response_column: what the warm start imitates.
        too_long: a prompt over the limit of tokens is an ``error``, or is left out and counted (``skip``).
    """

    name: Literal["rows"] = "rows"
    data_source: Annotated[str, Field(min_length=1)]
    train: tuple[str, ...]
    validation: tuple[str, ...] = ()
    demo: tuple[str, ...] = ()
    template: str | None = None
    messages_column: str | None = None
    chat: bool = False
    system: str | None = None
    ground_truth_column: str
    answer: Literal["whole", "gsm8k"] = "whole"
    response_column: str | None = None
    too_long: Literal["error", "skip"] = "error"

    @field_validator("template")
    @classmethod
    def _names_columns(cls, template: str | None) -> str | None:
        try:
            named = template is None or any(template_columns(template))
        except ValueError as error:
            raise ValueError(f"is no template: {error}") from error
        if not named:
            raise ValueError("names no column; write it in braces: {question}")
        return template

    @model_validator(mode="after")
    def _one_kind_of_prompt(self) -> "RowsConfig":
        if (self.template is None) == (self.messages_column is None):
            raise ValueError("one of template and messages_column must be set")
        if self.system is not None and not (self.chat or self.messages_column):
            raise ValueError("system needs chat=true or messages_column")
        if self.demo and self.response_column is None:
            raise ValueError("response_column must be set with demo files")
        return self

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        of_prompt = template_columns(self.template) if self.template else (self.messages_column,)
        wanted = (*of_prompt, self.ground_truth_column, self.response_column)
        return tuple(dict.fromkeys(name for name in wanted if name is not None))


def template_columns(template: str) -> tuple[str, ...]:
    """Return the names in a template's braces; double braces are braces.

    Raises:
        ValueError: a brace stands alone.
    """
    return tuple(name for _, name, _, _ in string.Formatter().parse(template) if name)


PromptConfig = Annotated[ArithmeticConfig | RowsConfig, Field(discriminator="name")]
