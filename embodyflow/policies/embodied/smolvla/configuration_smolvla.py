"""Configuration of SmolVLA."""

from typing import Literal, Self

from pydantic import Field, model_validator

from embodyflow.policies.embodied.flow_vla.configuration_flow_vla import FlowVLAConfig, FlowVLAScratchConfig


class SmolVLAScratchConfig(FlowVLAScratchConfig):
    """Sizes of a small SmolVLA of random weights; its expert is three quarters as wide as its language model."""

    pixel_shuffle: int = Field(2, ge=1, le=8, description="Patches a side that become one embedding.")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        heads = self.num_attention_heads
        if self.hidden_size % heads:
            raise ValueError(f"hidden_size={self.hidden_size} must be a multiple of num_attention_heads={heads}")
        if self.image_size // self.patch_size % self.pixel_shuffle:
            raise ValueError(f"image_size / patch_size must be a multiple of pixel_shuffle={self.pixel_shuffle}")
        if self.hidden_size // heads % 2 or self.hidden_size % 8:
            raise ValueError("hidden_size must be a multiple of 8, and of twice num_attention_heads")
        return self


class SmolVLAConfig(FlowVLAConfig):
    """Configuration of :class:`~embodyflow.policies.embodied.smolvla.policy_smolvla.SmolVLAPolicy`."""

    name: Literal["smolvla"] = "smolvla"
    scratch: SmolVLAScratchConfig | None = Field(None, description="Sizes of the model of random weights.")
