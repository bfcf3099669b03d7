"""Sizes of the policy."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class TinyVLAConfig(BaseModel):
    """Configuration of :class:`TinyVLA`; saved beside the weights as ``config.json``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Literal["tiny_vla"] = "tiny_vla"
    state_dim: int = Field(30, ge=0, le=4096, description="S, features of the state; 0 for images alone")
    image_size: int | None = Field(None, ge=16, le=512, description="pixels a side; null for no images")
    cameras: tuple[str, ...] = Field(("image",), min_length=1, description="keys of the images in the observation")
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
    def seen_cameras(self) -> tuple[str, ...]:
        """The cameras that are looked through: none without ``image_size``."""
        return self.cameras if self.image_size is not None else ()

    @property
    def observation_keys(self) -> list[str]:
        """The columns that are observed before each decision, beside the instruction."""
        return list(self.observation_shapes)

    @property
    def observation_shapes(self) -> dict[str, tuple[int | None, ...]]:
        """Which shapes they must have."""
        state: dict[str, tuple[int | None, ...]] = {"state": (self.state_dim,)} if self.state_dim else {}
        return state | dict.fromkeys(self.seen_cameras, (self.image_size, self.image_size, 3))

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.state_dim == 0 and self.image_size is None:
            raise ValueError("state_dim=0 needs image_size: a policy must observe something")
        if len({*self.cameras, "state"}) <= len(self.cameras) or any("." in camera for camera in self.cameras):
            raise ValueError(f"cameras={list(self.cameras)}: each only once, none named state, no dots")
        return self
