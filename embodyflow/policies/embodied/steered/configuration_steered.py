"""Configuration of policies that steer a frozen one by its noise, and of their critics."""

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from embodyflow.policies.embodied.flow_vla.configuration_flow_vla import FlowVLAConfig, PaliGemmaScratchConfig
from embodyflow.policies.embodied.smolvla.configuration_smolvla import SmolVLAScratchConfig


class SteeredConfig(FlowVLAConfig):
    """Base of the configurations of :class:`~embodyflow.policies.embodied.steered.policy_steered.SteeredPolicy`.

    The keys of the frozen policy are beside those of the one that steers it. That one reads the state alone, so it
    learns one task.

    Attributes:
        steers: Name of the shipped policy that is frozen.
    """

    off_policy: ClassVar[str | None] = "dsrl"
    reads_instruction: ClassVar[bool] = False
    exports_checkpoint: ClassVar[bool] = False
    entropy_varies: ClassVar[bool] = True
    has_features: ClassVar[bool] = False
    steers: ClassVar[str]

    noise_bound: float = Field(2.0, gt=0, le=10, description="b, bound of each number of the noise, in deviations.")
    share_noise: bool = Field(True, description="Give all actions of a chunk the same noise.")
    hidden_size: int = Field(256, ge=1, le=4096, description="Features of a hidden layer of actor and critics.")
    num_layers: int = Field(2, ge=1, le=32, description="Hidden layers of actor and critics.")
    num_critics: int = Field(10, ge=1, le=64, description="Critics in the ensemble.")
    critic_layer_norm: bool = Field(True, description="Normalise the features of each of the critics' hidden layers.")

    @property
    def decision_dim(self) -> int:
        """Numbers of the noise that is chosen: A if the actions of a chunk share it, else C·A."""
        return self.action_dim if self.share_noise else self.chunk_size * self.action_dim

    @property
    def num_action_tokens(self) -> int:
        """L = C·A: the log-density of a number that several actions share is divided among them."""
        return self.chunk_size * self.action_dim

    @field_validator("state_dim", mode="before")
    @classmethod
    def _has_state(cls, size: Any) -> Any:
        if size == 0:  # the size of an environment's state that it does not show
            raise ValueError("the environment has no state, which the network that chooses the noise reads")
        return size

    @model_validator(mode="after")
    def _adds_no_noise(self) -> Self:
        default = FlowVLAConfig.model_fields["noise_level"].default
        if self.noise_level != default:
            raise ValueError(
                f"noise_level={self.noise_level:g}: has no meaning with name={self.name}, which denoises without "
                f"noise; allowed is {default:g}"
            )
        return self


class SteeredSmolVLAConfig(SteeredConfig):
    """Configuration of a policy that steers ``policy_smolvla.SmolVLAPolicy``."""

    steers: ClassVar[str] = "smolvla"

    name: Literal["steered_smolvla"] = "steered_smolvla"
    scratch: SmolVLAScratchConfig | None = Field(None, description="Sizes of the frozen model of random weights.")


class SteeredPI0Config(SteeredConfig):
    """Configuration of a policy that steers ``policy_pi0.PI0Policy``."""

    steers: ClassVar[str] = "pi0"

    name: Literal["steered_pi0"] = "steered_pi0"
    scratch: PaliGemmaScratchConfig | None = Field(None, description="Sizes of the frozen model of random weights.")
