"""Which π0 it is."""

from typing import Literal

from pydantic import Field, field_validator

from embodyflow.policies.flow_vla.configuration_flow_vla import FlowVLAConfig, FlowVLAScratchConfig


class PI0ScratchConfig(FlowVLAScratchConfig):
    """A small π0 of random weights; language model and expert have heads of one size, whatever their own is."""

    head_dim: int = Field(16, ge=2, le=1024)
    expert_hidden_size: int = Field(32, ge=2, le=65536)
    expert_intermediate_size: int = Field(64, ge=2, le=262144)

    @field_validator("head_dim", "expert_hidden_size")
    @classmethod
    def _even(cls, size: int) -> int:
        if size % 2:  # features turn in pairs, and times are sines and cosines
            raise ValueError(f"must be even, is {size}")
        return size


class PI0Config(FlowVLAConfig):
    """Configuration of :class:`~embodyflow.policies.pi0.policy_pi0.PI0Policy`."""

    name: Literal["pi0"] = "pi0"
    scratch: PI0ScratchConfig | None = Field(None, description="the model of random weights")
