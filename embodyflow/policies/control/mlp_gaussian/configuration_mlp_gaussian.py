"""Configuration of the Gaussian policy."""

from typing import ClassVar, Literal

from pydantic import Field

from embodyflow.policies.control.mlp.configuration_mlp import MLPConfig


class MLPGaussianConfig(MLPConfig):
    """Configuration of :class:`~embodyflow.policies.control.mlp_gaussian.modeling_mlp_gaussian.MLPGaussian`."""

    discrete_policy: ClassVar[str | None] = "mlp_categorical"
    entropy_varies: ClassVar[bool] = False
    entropy_is_density: ClassVar[bool] = True
    compiles: ClassVar[bool] = True

    name: Literal["mlp_gaussian"] = "mlp_gaussian"
    action_dim: int = Field(ge=1, le=64, description="A, dimensions of one action.")
    initial_log_std: float = Field(0.0, ge=-5, le=2, description="Logarithm of the standard deviation at the start.")
