"""Which language model it is."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from embodyflow.references import resolve


class ScratchConfig(BaseModel):
    """A model of random weights; names are those of the model's own configuration in transformers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model_type: str = Field("qwen3", description="an architecture of transformers' AutoConfig")
    hidden_size: int = Field(128, ge=8, le=65536)
    intermediate_size: int = Field(384, ge=8, le=262144)
    num_hidden_layers: int = Field(3, ge=1, le=256)
    num_attention_heads: int = Field(4, ge=1, le=512)
    num_key_value_heads: int = Field(2, ge=1, le=512)
    head_dim: int = Field(32, ge=2, le=1024)
    max_position_embeddings: int = Field(128, ge=2, le=2**24, description="tokens of the longest sequence")
    tie_word_embeddings: bool = True


class CausalLMConfig(BaseModel):
    """Configuration of :class:`~embodyflow.policies.causal_lm.policy_causal_lm.CausalLMPolicy`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Literal["causal_lm"] = "causal_lm"
    path: str | None = Field(None, description="folder, or name on the Hugging Face hub; null for random weights")
    scratch: ScratchConfig | None = Field(None, description="the model of random weights")
    tokenizer: str | None = Field(
        None, description="folder, hub name or module:function that builds one; null for the model's own"
    )
    attn_implementation: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"

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
