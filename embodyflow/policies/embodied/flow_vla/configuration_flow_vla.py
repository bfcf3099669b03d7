"""Configuration of policies that denoise by flow matching: their observations, chunks and exploration."""

from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from embodyflow.policies.policy_config import EmbodiedPolicyConfig, Shape
from embodyflow.policies.pretrained.configuration import PretrainedConfig


class FlowVLAScratchConfig(BaseModel):
    """Sizes of a small model of random weights, with the parts of the published ones."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    image_size: int = Field(32, ge=8, le=1024, description="Pixels a side that the vision tower reads.")
    patch_size: int = Field(8, ge=2, le=64, description="Pixels a side of a patch.")
    vision_hidden_size: int = Field(32, ge=8, le=4096, description="Features of the vision tower.")
    num_vision_layers: int = Field(1, ge=1, le=64, description="Layers of the vision tower.")
    hidden_size: int = Field(48, ge=8, le=65536, description="Features of the language model.")
    intermediate_size: int = Field(96, ge=8, le=262144, description="Features inside an MLP of the language model.")
    num_layers: int = Field(2, ge=1, le=256, description="Layers of language model and expert.")
    num_attention_heads: int = Field(4, ge=1, le=512, description="Heads of language model, expert and vision tower.")
    num_key_value_heads: int = Field(2, ge=1, le=512, description="Heads of keys and values.")
    max_state_dim: int = Field(8, ge=1, le=4096, description="Features that states are padded to.")
    max_action_dim: int = Field(8, ge=1, le=256, description="Dimensions that actions are padded to.")

    @model_validator(mode="after")
    def _divides(self) -> Self:
        for whole, part in (
            ("image_size", "patch_size"),
            ("vision_hidden_size", "num_attention_heads"),
            ("num_attention_heads", "num_key_value_heads"),
        ):
            if getattr(self, whole) % getattr(self, part):
                raise ValueError(f"{whole}={getattr(self, whole)} must be a multiple of {part}={getattr(self, part)}")
        return self


class PaliGemmaScratchConfig(FlowVLAScratchConfig):
    """Sizes of a small model with a PaliGemma of random weights.

    Heads of language model and expert have one size, whatever the widths.
    """

    head_dim: int = Field(16, ge=2, le=1024, description="Features of a head.")
    expert_hidden_size: int = Field(32, ge=2, le=65536, description="Features of the expert.")
    expert_intermediate_size: int = Field(64, ge=2, le=262144, description="Features inside an MLP of the expert.")

    @field_validator("head_dim", "expert_hidden_size")
    @classmethod
    def _even(cls, size: int) -> int:
        if size % 2:  # rotary embeddings turn features in pairs, and times become sines and cosines
            raise ValueError(f"must be even, is {size}")
        return size


class FlowVLAConfig(PretrainedConfig, EmbodiedPolicyConfig):
    """Configuration of a :class:`~embodyflow.policies.embodied.flow_vla.policy_flow_vla.FlowVLAPolicy`."""

    entropy_varies: ClassVar[bool] = False
    entropy_is_density: ClassVar[bool] = True
    has_features: ClassVar[bool] = True

    scratch: FlowVLAScratchConfig | None = Field(None, description="Sizes of the model of random weights.")
    state_dim: int = Field(8, ge=1, le=4096, description="S, features of the state.")
    action_dim: int = Field(7, ge=1, le=64, description="A, dimensions of one action.")
    chunk_size: int = Field(10, ge=1, le=256, description="C, actions of one decision, the model's first.")
    num_steps: int = Field(10, ge=1, le=100, description="K, denoising steps of one decision.")
    noise_level: float = Field(0.5, gt=0, le=2, description="a, size of the noise that denoising adds.")
    cameras: tuple[str, ...] = Field(("image",), min_length=1, description="Keys of the images, in order.")
    normalization: Literal["checkpoint", "demonstrations"] = Field(
        "checkpoint", description="Source of the statistics that standardise states and actions."
    )
    train_expert_only: bool = Field(True, description="Freeze the vision-language model.")
    max_prompt_tokens: int = Field(48, ge=1, le=2048, description="I, tokens of the longest prompt.")

    @property
    def num_action_tokens(self) -> int:
        """L = C·K: each denoising step of each action has a log-prob."""
        return self.chunk_size * self.num_steps

    @property
    def observation_shapes(self) -> dict[str, Shape]:
        """Shapes of the state and of the images, which may have any size."""
        return {"state": (self.state_dim,), **dict.fromkeys(self.cameras, (None, None, 3))}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len({*self.cameras, "state"}) <= len(self.cameras):
            raise ValueError(f"cameras={list(self.cameras)}: must name each camera once, none state")
        if self.scratch is None:
            return self
        if self.normalization == "checkpoint":
            raise ValueError("normalization=checkpoint: must be demonstrations with scratch")
        for key in ("state_dim", "action_dim"):
            if getattr(self, key) > (limit := getattr(self.scratch, f"max_{key}")):
                raise ValueError(f"{key}={getattr(self, key)}: must be at most scratch.max_{key}={limit}")
        return self
