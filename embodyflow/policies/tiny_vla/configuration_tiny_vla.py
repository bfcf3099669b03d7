"""Sizes of the policy."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class TinyVLAConfig(BaseModel):
    """Configuration of :class:`TinyVLA`; saved beside the weights as ``config.json``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Literal["tiny_vla"] = "tiny_vla"
    state_dim: int = Field(30, ge=0, le=4096, description="S, features of the state; 0 for images alone")
    image_size: int | None = Field(None, ge=16, le=512, description="pixels a side; null for no images")
    action_dim: int = Field(4, ge=1, le=64, description="A, dimensions of one action")
    chunk_size: int = Field(5, ge=1, le=64, description="C, actions of one decision")
    num_bins: int = Field(256, ge=2, le=1024, description="values of an action token")
    num_bumps: int = Field(32, ge=2, le=1024, description="smooth functions that a token's logits are a sum of")
    vocab_size: int = Field(512, ge=2, le=65536, description="hash buckets of words; 0 is padding")
    max_instruction_length: int = Field(16, ge=1, le=128, description="I, words read of an instruction")
    hidden_size: int = Field(256, ge=8, le=4096)
    num_layers: int = Field(2, ge=1, le=32)

    @property
    def num_action_tokens(self) -> int:
        """L = C·A, the tokens of one decision."""
        return self.chunk_size * self.action_dim

    @property
    def observation_keys(self) -> list[str]:
        """The columns that are observed before each decision, beside the instruction."""
        used = {"state": self.state_dim > 0, "image": self.image_size is not None}
        return [name for name, is_used in used.items() if is_used]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.state_dim == 0 and self.image_size is None:
            raise ValueError("state_dim=0 needs image_size: a policy must observe something")
        return self
