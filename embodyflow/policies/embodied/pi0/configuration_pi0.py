"""Configuration of π0."""

from typing import Literal

from pydantic import Field

from embodyflow.policies.embodied.flow_vla.configuration_flow_vla import FlowVLAConfig, PaliGemmaScratchConfig


class PI0Config(FlowVLAConfig):
    """Configuration of :class:`~embodyflow.policies.embodied.pi0.policy_pi0.PI0Policy`."""

    name: Literal["pi0"] = "pi0"
    scratch: PaliGemmaScratchConfig | None = Field(None, description="Sizes of the model of random weights.")
