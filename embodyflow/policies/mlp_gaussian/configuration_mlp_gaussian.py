"""Sizes of the policy."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class MLPGaussianConfig(BaseModel):
    """Configuration of :class:`~embodyflow.policies.mlp_gaussian.modeling_mlp_gaussian.MLPGaussian`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Literal["mlp_gaussian"] = "mlp_gaussian"
    state_dim: int = Field(ge=1, le=4096, description="S, features of the state")
    action_dim: int = Field(ge=1, le=64, description="A, dimensions of one action")
    hidden_size: int = Field(64, ge=1, le=4096)
    num_layers: int = Field(2, ge=1, le=32, description="hidden layers")
    initial_log_std: float = Field(0.0, ge=-5, le=2, description="logarithm of the deviation at the start")

    @property
    def chunk_size(self) -> int:
        """C: one action a decision."""
        return 1

    @property
    def num_action_tokens(self) -> int:
        """L: an action is chosen as one, so it has one log-prob."""
        return 1

    @property
    def observation_shapes(self) -> dict[str, tuple[int | None, ...]]:
        """What is observed before each decision, and which shape it must have."""
        return {"state": (self.state_dim,)}
