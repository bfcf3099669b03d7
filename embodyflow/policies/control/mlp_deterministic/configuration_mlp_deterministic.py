"""Configuration of the deterministic policy and its critics."""

from typing import ClassVar, Literal

from pydantic import Field

from embodyflow.policies.control.mlp_squashed.configuration_mlp_squashed import MLPWithActionCriticsConfig


class MLPDeterministicConfig(MLPWithActionCriticsConfig):
    """Configuration of ``modeling_mlp_deterministic.MLPDeterministic``."""

    off_policy: ClassVar[str | None] = "td3"
    compiles: ClassVar[bool] = True
    entropy_varies: ClassVar[bool] = False

    name: Literal["mlp_deterministic"] = "mlp_deterministic"
    exploration_noise: float = Field(0.1, gt=0, le=10, description="Deviation of the noise added to sampled actions.")
