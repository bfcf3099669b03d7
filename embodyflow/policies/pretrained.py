"""What configurations of policies have in common whose weights are a model of the Hugging Face hub's, or random."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from embodyflow.references import resolve


class PretrainedConfig(BaseModel):
    """Where weights and tokenizer come from; ``scratch`` is given a type by the policy's own configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str | None = Field(None, description="folder, or name on the Hugging Face hub; null for random weights")
    scratch: BaseModel | None = Field(None, description="the model of random weights")
    tokenizer: str | None = Field(
        None, description="folder, hub name or module:function that builds one; null for the model's own"
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.path is None) == (self.scratch is None):
            raise ValueError("exactly one of path and scratch must be set")
        if self.scratch is not None and self.tokenizer is None:
            raise ValueError("scratch needs a tokenizer: a folder, a hub name or module:function")
        if self.tokenizer is not None and ":" in self.tokenizer:
            try:
                resolve(self.tokenizer)
            except ImportError as error:
                raise ValueError(f"tokenizer={self.tokenizer}: {error}") from error
        return self
