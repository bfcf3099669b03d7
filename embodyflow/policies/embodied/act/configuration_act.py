"""Configuration of ACT: its sizes, observations, chunks and exploration."""

from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from embodyflow.policies.policy_config import EmbodiedPolicyConfig, Shape
from embodyflow.policies.pretrained.configuration import WeightsConfig

Backbone = Literal["resnet18", "resnet34"]


class ACTScratchConfig(BaseModel):
    """Sizes of a model of random weights, by LeRobot's names."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dim_model: int = Field(64, ge=8, le=8192, multiple_of=4, description="Features of a token, a multiple of 4.")
    n_heads: int = Field(4, ge=1, le=256, description="Heads of attention.")
    dim_feedforward: int = Field(128, ge=1, le=65536, description="Features inside an MLP.")
    n_encoder_layers: int = Field(2, ge=1, le=64, description="Layers of the encoder of observations.")
    n_decoder_layers: int = Field(1, ge=1, le=64, description="Layers of the decoder of actions.")
    use_vae: bool = Field(True, description="Whether cloning encodes the demonstrated chunk into a latent.")
    n_vae_encoder_layers: int = Field(2, ge=1, le=64, description="Layers of the encoder of demonstrated chunks.")
    latent_dim: int = Field(32, ge=1, le=4096, description="Numbers of the latent.")
    vision_backbone: Backbone = Field("resnet18", description="ResNet that reads images.")
    backbone_width: int = Field(
        64, ge=4, le=1024, description="Features of the ResNet's first layers; LeRobot reads 64 alone."
    )

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.dim_model % self.n_heads:
            raise ValueError(f"dim_model={self.dim_model} must be a multiple of n_heads={self.n_heads}")
        return self


class ACTConfig(WeightsConfig, EmbodiedPolicyConfig):
    """Configuration of :class:`~embodyflow.policies.embodied.act.policy_act.ACTPolicy`."""

    reads_instruction: ClassVar[bool] = False
    entropy_varies: ClassVar[bool] = False
    entropy_is_density: ClassVar[bool] = True
    has_features: ClassVar[bool] = True

    name: Literal["act"] = "act"
    scratch: ACTScratchConfig | None = Field(None, description="Sizes of the model of random weights.")
    state_dim: int = Field(14, ge=1, le=4096, description="S, features of the state.")
    robot_state_dim: int | None = Field(
        None,
        ge=1,
        description="First features of the state, LeRobot's `observation.state`; the others are its "
        "`observation.environment_state`. null for all, which needs cameras.",
    )
    action_dim: int = Field(14, ge=1, le=64, description="A, dimensions of one action.")
    chunk_size: int = Field(10, ge=1, le=256, description="C, actions of one decision, the model's first.")
    cameras: tuple[str, ...] = Field((), description="Keys of the images, in order; none reads states alone.")
    normalization: Literal["checkpoint", "demonstrations"] = Field(
        "checkpoint", description="Source of the statistics that standardise states and actions."
    )
    kl_weight: float = Field(10.0, ge=0, description="Weight of the latent's divergence from a standard normal.")
    initial_scale: float = Field(
        0.1, gt=0, le=1, description="Scale of the Laplace distribution at the start, in deviations of actions."
    )

    @property
    def environment_state_dim(self) -> int:
        """Features of the state after the robot's own."""
        return 0 if self.robot_state_dim is None else self.state_dim - self.robot_state_dim

    @property
    def observation_shapes(self) -> dict[str, Shape]:
        """Shapes of the state and of the images, which may have any size."""
        return {"state": (self.state_dim,), **dict.fromkeys(self.cameras, (None, None, 3))}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len({*self.cameras, "state"}) <= len(self.cameras):
            raise ValueError(f"cameras={list(self.cameras)}: must name each camera once, none state")
        if self.robot_state_dim is not None and self.robot_state_dim > self.state_dim:
            raise ValueError(f"robot_state_dim={self.robot_state_dim}: must be at most state_dim={self.state_dim}")
        if not self.cameras and self.environment_state_dim < 1:
            known = "null" if self.robot_state_dim is None else self.robot_state_dim
            raise ValueError(
                f"robot_state_dim={known}: without cameras it must be from 1 to state_dim - 1 = {self.state_dim - 1}, "
                "as ACT reads images or an environment's state"
            )
        if self.scratch is not None and self.normalization == "checkpoint":
            raise ValueError("normalization=checkpoint: must be demonstrations with scratch")
        return self
