"""Configuration of π0.5."""

from typing import ClassVar, Literal

from pydantic import Field

from embodyflow.policies.embodied.flow_vla.configuration_flow_vla import FlowVLAConfig, PaliGemmaScratchConfig


class PI05Config(FlowVLAConfig):
    """Configuration of :class:`~embodyflow.policies.embodied.pi05.policy_pi05.PI05Policy`."""

    needs_quantiles: ClassVar[bool] = True

    name: Literal["pi05"] = "pi05"
    scratch: PaliGemmaScratchConfig | None = Field(None, description="Sizes of the model of random weights.")
    max_prompt_tokens: int = Field(200, ge=1, le=2048, description="I, tokens of the longest prompt with its state.")
