"""Configuration of π0."""

from typing import Literal

from pydantic import Field, field_validator

from embodyflow.policies.embodied.flow_vla.configuration_flow_vla import FlowVLAConfig, FlowVLAScratchConfig


class PI0ScratchConfig(FlowVLAScratchConfig):
    """Sizes of a small π0 of random weights; heads of language model and expert have one size, whatever the widths."""

    head_dim: int = Field(16, ge=2, le=1024, description="Features of a head.")
    expert_hidden_size: int = Field(32, ge=2, le=65536, description="Features of the expert.")
    expert_intermediate_size: int = Field(64, ge=2, le=262144, description="Features inside an MLP of the expert.")

    @field_validator("head_dim", "expert_hidden_size")
    @classmethod
    def _even(cls, size: int) -> int:
        if size % 2:  # rotary embeddings turn features in pairs, and times become sines and cosines
            raise ValueError(f"must be even, is {size}")
        return size


class PI0Config(FlowVLAConfig):
    """Configuration of :class:`~embodyflow.policies.embodied.pi0.policy_pi0.PI0Policy`."""

    name: Literal["pi0"] = "pi0"
    scratch: PI0ScratchConfig | None = Field(None, description="Sizes of the model of random weights.")
