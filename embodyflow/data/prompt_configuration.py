"""Where prompts come from, and what becomes of those that are too long."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Fraction = Annotated[float, Field(gt=0, lt=1)]


class _Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ArithmeticConfig(_Config):
    """Sums of two numbers, made up by :mod:`embodyflow.data.arithmetic`.

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


PromptConfig = ArithmeticConfig
