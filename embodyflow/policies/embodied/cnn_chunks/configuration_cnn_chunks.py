"""Configuration of the squashed Gaussian over chunks of actions that reads images, and of its critics."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from embodyflow.policies.embodied.mlp_chunks.configuration_mlp_chunks import ChunksConfig
from embodyflow.policies.policy_config import Shape


@dataclass
class HeadSizes:
    """Sizes of the networks that map features of an observation to decisions and values."""

    state_dim: int
    decision_dim: int
    hidden_size: int
    num_layers: int
    num_critics: int
    critic_layer_norm: bool


class CNNChunksConfig(ChunksConfig):
    """Configuration of :class:`~embodyflow.policies.embodied.cnn_chunks.modeling_cnn_chunks.CNNChunks`."""

    off_policy: ClassVar[str | None] = "drq"

    name: Literal["cnn_chunks"] = "cnn_chunks"
    state_features: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(
        None, description="Indices of the state's features to read, such as the robot's own; null reads all."
    )
    cameras: tuple[str, ...] = Field(("image",), min_length=1, description="Keys of the images in the observation.")
    image_size: int = Field(64, ge=16, le=256, description="Pixels a side.")
    channels: int = Field(32, ge=1, le=512, description="Channels of each convolution.")
    num_convolutions: int = Field(3, ge=1, le=6, description="Convolutions, each of which halves the image.")
    image_features: int = Field(64, ge=1, le=4096, description="Features of all images together.")

    @property
    def observation_shapes(self) -> dict[str, Shape]:
        """Shapes of state and images."""
        return {"state": (self.state_dim,), **self.replayed_images}

    @property
    def replayed_images(self) -> dict[str, tuple[int, int, int]]:
        """Shape of each camera's images."""
        return dict.fromkeys(self.cameras, (self.image_size, self.image_size, 3))

    @property
    def read_features(self) -> tuple[int, ...]:
        """Indices of the state's features that the policy reads."""
        return tuple(range(self.state_dim)) if self.state_features is None else self.state_features

    @property
    def head_sizes(self) -> HeadSizes:
        """Sizes of the networks of features, whose state is the features."""
        return HeadSizes(
            state_dim=self.image_features + len(self.read_features),
            decision_dim=self.decision_dim,
            hidden_size=self.hidden_size,
            num_layers=self.num_layers,
            num_critics=self.num_critics,
            critic_layer_norm=self.critic_layer_norm,
        )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len({*self.cameras, "state"}) <= len(self.cameras) or any("." in camera for camera in self.cameras):
            raise ValueError(f"cameras={list(self.cameras)}: must name each camera once, without dots, none state")
        read = self.read_features
        if len(set(read)) < len(read) or max(read, default=0) >= self.state_dim:
            raise ValueError(f"state_features={list(read)}: must be different indices below state_dim={self.state_dim}")
        return self
