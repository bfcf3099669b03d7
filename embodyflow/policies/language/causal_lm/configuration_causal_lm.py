"""Configuration of a causal language model."""

from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from embodyflow.policies.pretrained.configuration import PretrainedConfig


class ScratchConfig(BaseModel):
    """Sizes of a model of random weights, by the names of the model's own configuration in transformers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model_type: str = Field("qwen3", description="Architecture, by its name in transformers' AutoConfig.")
    hidden_size: int = Field(128, ge=8, le=65536, description="Features of an embedding.")
    intermediate_size: int = Field(384, ge=8, le=262144, description="Features inside an MLP.")
    num_hidden_layers: int = Field(3, ge=1, le=256, description="Layers of the decoder.")
    num_attention_heads: int = Field(4, ge=1, le=512, description="Heads of the queries.")
    num_key_value_heads: int = Field(2, ge=1, le=512, description="Heads of keys and values.")
    head_dim: int = Field(32, ge=2, le=1024, description="Features of a head.")
    max_position_embeddings: int = Field(128, ge=2, le=2**24, description="Tokens of the longest sequence.")
    tie_word_embeddings: bool = Field(True, description="Use the embedding as the head's weight.")
    initializer_range: float = Field(0.02, gt=0, le=1, description="Standard deviation of the random weights.")

    @model_validator(mode="after")
    def _divides(self) -> Self:
        heads, shared = self.num_attention_heads, self.num_key_value_heads
        if heads % shared:
            raise ValueError(f"num_attention_heads={heads} must be a multiple of num_key_value_heads={shared}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} must be even: rotary embeddings turn features in pairs")
        return self


class CausalLMConfig(PretrainedConfig):
    """Configuration of :class:`~embodyflow.policies.language.causal_lm.policy_causal_lm.CausalLMPolicy`.

    Language policies of other packages extend it.
    """

    job: ClassVar[str] = "language"

    name: str = "causal_lm"
    scratch: ScratchConfig | None = Field(None, description="Sizes of the model of random weights.")
    attn_implementation: Literal["sdpa", "eager", "flash_attention_2"] = Field(
        "sdpa", description="Attention, by its name in transformers."
    )
