"""Configuration of the squashed Gaussian over chunks of actions, and of its critics."""

from typing import ClassVar, Literal

from pydantic import Field

from embodyflow.policies.policy_config import EmbodiedPolicyConfig, Shape


class ChunksConfig(EmbodiedPolicyConfig):
    """Base of the configurations of squashed Gaussians over chunks of actions, whose critics have their sizes."""

    reads_instruction: ClassVar[bool] = False
    entropy_is_density: ClassVar[bool] = True

    state_dim: int = Field(ge=1, le=4096, description="S, features of the state.")
    action_dim: int = Field(ge=1, le=64, description="A, dimensions of one action.")
    chunk_size: int = Field(5, ge=1, le=64, description="C, actions of one decision.")
    hidden_size: int = Field(256, ge=1, le=4096, description="Features of a hidden layer.")
    num_layers: int = Field(2, ge=1, le=32, description="Hidden layers.")
    num_critics: int = Field(10, ge=1, le=64, description="Critics in the ensemble.")
    critic_layer_norm: bool = Field(True, description="Normalise the features of each of the critics' hidden layers.")


class MLPChunksConfig(ChunksConfig):
    """Configuration of :class:`~embodyflow.policies.embodied.mlp_chunks.modeling_mlp_chunks.MLPChunks`."""

    off_policy: ClassVar[str | None] = "sac"
    compiles: ClassVar[bool] = True

    name: Literal["mlp_chunks"] = "mlp_chunks"

    @property
    def observation_shapes(self) -> dict[str, Shape]:
        """Shape of the state."""
        return {"state": (self.state_dim,)}
