"""Configuration of OpenVLA: its weights, its observations and its decoding."""

from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from embodyflow.policies.policy_config import EmbodiedPolicyConfig, Shape
from embodyflow.policies.pretrained.configuration import PretrainedConfig

Resample = Literal["lanczos", "bicubic"]
Gripper = Literal["as_predicted", "binary_inverted"]


class OpenVLAScratchConfig(BaseModel):
    """Sizes of a small model of random weights, with the parts of the published ones."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    image_size: int = Field(28, ge=14, le=1024, description="Pixels a side that the vision towers read.")
    patch_size: int = Field(14, ge=2, le=64, description="Pixels a side of a patch.")
    vision_hidden_size: int = Field(32, ge=8, le=4096, description="Features of each tower.")
    num_vision_layers: int = Field(3, ge=2, le=64, description="Layers of each tower; the last one is not used.")
    hidden_size: int = Field(64, ge=8, le=65536, description="Features of the language model.")
    intermediate_size: int = Field(128, ge=8, le=262144, description="Features inside an MLP of the language model.")
    num_hidden_layers: int = Field(2, ge=1, le=256, description="Layers of the language model.")
    num_attention_heads: int = Field(4, ge=1, le=512, description="Heads of language model and towers.")

    @model_validator(mode="after")
    def _divides(self) -> Self:
        for whole, part in (
            ("image_size", "patch_size"),
            ("vision_hidden_size", "num_attention_heads"),
            ("hidden_size", "num_attention_heads"),
        ):
            if getattr(self, whole) % getattr(self, part):
                raise ValueError(f"{whole}={getattr(self, whole)} must be a multiple of {part}={getattr(self, part)}")
        return self


class OpenVLAConfig(PretrainedConfig, EmbodiedPolicyConfig):
    """Configuration of :class:`~embodyflow.policies.embodied.openvla.policy_openvla.OpenVLAPolicy`."""

    has_features: ClassVar[bool] = True

    name: Literal["openvla"] = "openvla"
    scratch: OpenVLAScratchConfig | None = Field(None, description="Sizes of the model of random weights.")
    decoding: Literal["autoregressive", "parallel"] = Field(
        "autoregressive", description="One token after the other, or OpenVLA-OFT's whole chunk in one forward pass."
    )
    action_dim: int = Field(7, ge=1, le=64, description="A, dimensions of one action.")
    chunk_size: int = Field(1, ge=1, le=64, description="C, actions of one decision.")
    cameras: tuple[str, ...] = Field(("image",), min_length=1, description="Keys of the images, in order.")
    center_crop: bool = Field(True, description="Crop images to the middle 90% of their area.")
    resample: Resample = Field("lanczos", description="Filter that resizes images to the model's size.")
    unnorm_key: str | None = Field(
        None, description="Data set whose statistics scale the actions; null takes the checkpoint's only one."
    )
    gripper: Gripper = Field(
        "binary_inverted", description="Last dimension: 1 opens in the data, -1 in LIBERO; as_predicted keeps it."
    )
    max_prompt_tokens: int = Field(64, ge=1, le=2048, description="I, tokens of the longest prompt.")

    @property
    def observation_shapes(self) -> dict[str, Shape]:
        """Shapes of the images, of any size."""
        return dict.fromkeys(self.cameras, (None, None, 3))

    @model_validator(mode="after")
    def _cameras_differ(self) -> Self:
        if len(set(self.cameras)) < len(self.cameras):
            raise ValueError(f"cameras={list(self.cameras)}: must name each camera once")
        return self
