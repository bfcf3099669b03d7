"""Bases of the configurations of policies whose weights are a published checkpoint, or random."""

from typing import ClassVar, Self

from pydantic import BaseModel, Field, model_validator

from embodyflow.policies.policy_config import PolicyConfig
from embodyflow.references import resolve


class WeightsConfig(PolicyConfig):
    """Source of weights; each policy's configuration gives ``scratch`` its own type.

    Attributes:
        exports_checkpoint: Whether ``path`` accepts the policy's export.
    """

    exports_checkpoint: ClassVar[bool] = True

    path: str | None = Field(
        None, description="Folder, name on the Hugging Face hub or, for language, GGUF file; null for random weights."
    )
    scratch: BaseModel | None = Field(None, description="Sizes of the model of random weights.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.path is None) == (self.scratch is None):
            raise ValueError(
                "exactly one of path and scratch must be set: policy.path to the folder of a pretrained model or to "
                "its name on the Hugging Face hub, or policy.scratch to the sizes of a model of random weights"
            )
        return self


class PretrainedConfig(WeightsConfig):
    """Source of weights and tokenizer."""

    tokenizer: str | None = Field(
        None, description="Folder, hub name or module:function that builds one; null for the model's own."
    )

    @model_validator(mode="after")
    def _tokenizer_exists(self) -> Self:
        if self.scratch is not None and self.tokenizer is None:
            raise ValueError("scratch needs a tokenizer: a folder, a hub name or module:function")
        if self.tokenizer is not None and ":" in self.tokenizer:
            try:
                resolve(self.tokenizer)
            except ImportError as error:
                raise ValueError(f"tokenizer={self.tokenizer}: {error}") from error
        return self
