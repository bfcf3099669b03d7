"""Which language model it is."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from embodyflow.policies.pretrained import PretrainedConfig


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


class CausalLMConfig(PretrainedConfig):
    """Configuration of :class:`~embodyflow.policies.causal_lm.policy_causal_lm.CausalLMPolicy`."""

    name: Literal["causal_lm"] = "causal_lm"
    scratch: ScratchConfig | None = Field(None, description="the model of random weights")
    attn_implementation: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
