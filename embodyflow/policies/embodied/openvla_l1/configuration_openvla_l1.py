"""Configuration of OpenVLA-OFT with a regression head."""

from typing import ClassVar, Literal

from pydantic import Field

from embodyflow.policies.embodied.openvla.configuration_openvla import OpenVLAConfig
from embodyflow.policies.policy_config import Shape


class OpenVLAL1Config(OpenVLAConfig):
    """Configuration of :class:`~embodyflow.policies.embodied.openvla_l1.policy_openvla_l1.OpenVLAL1Policy`."""

    entropy_varies: ClassVar[bool] = False
    entropy_is_density: ClassVar[bool] = True
    needs_quantiles: ClassVar[bool] = True

    name: Literal["openvla_l1"] = "openvla_l1"  # type: ignore[assignment]
    decoding: Literal["parallel"] = Field("parallel", description="A whole chunk in one forward pass.")
    chunk_size: int = Field(8, ge=1, le=64, description="C, actions of one decision.")
    state_dim: int = Field(8, ge=0, le=4096, description="S, features of the state; 0 reads images alone.")
    head_hidden_size: int = Field(4096, ge=8, le=65536, description="Features of the regression head's hidden layers.")
    initial_scale: float = Field(
        0.05, gt=0, le=1, description="Scale of the Laplace distribution at the start, of actions in [-1, 1]."
    )

    @property
    def observation_shapes(self) -> dict[str, Shape]:
        """Shapes of the state, where the policy reads it, and of the images, of any size."""
        state: dict[str, Shape] = {"state": (self.state_dim,)} if self.state_dim else {}
        return state | super().observation_shapes
