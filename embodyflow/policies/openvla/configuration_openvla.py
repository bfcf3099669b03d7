"""Which OpenVLA it is, what it sees and how it decodes."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from embodyflow.policies.pretrained import PretrainedConfig

Resample = Literal["lanczos", "bicubic"]
Gripper = Literal["as_predicted", "binary_inverted"]


class OpenVLAScratchConfig(BaseModel):
    """A small model of random weights; its parts are those of the published ones."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    image_size: int = Field(28, ge=14, le=1024, description="pixels a side that the vision towers see")
    patch_size: int = Field(14, ge=2, le=64)
    vision_hidden_size: int = Field(32, ge=8, le=4096, description="of each tower")
    num_vision_layers: int = Field(3, ge=2, le=64, description="of each tower; the last is not used")
    hidden_size: int = Field(64, ge=8, le=65536, description="of the language model")
    intermediate_size: int = Field(128, ge=8, le=262144)
    num_hidden_layers: int = Field(2, ge=1, le=256)
    num_attention_heads: int = Field(4, ge=1, le=512, description="of language model and towers")

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


class OpenVLAConfig(PretrainedConfig):
    """Configuration of :class:`~embodyflow.policies.openvla.policy_openvla.OpenVLAPolicy`."""

    name: Literal["openvla"] = "openvla"
    scratch: OpenVLAScratchConfig | None = Field(None, description="the model of random weights")
    decoding: Literal["autoregressive", "parallel"] = Field(
        "autoregressive", description="one token after the other, or OpenVLA-OFT's whole chunk in one forward pass"
    )
    action_dim: int = Field(7, ge=1, le=64, description="A, dimensions of one action")
    chunk_size: int = Field(1, ge=1, le=64, description="C, actions of one decision")
    cameras: tuple[str, ...] = Field(("image",), min_length=1, description="keys of the observation, in this order")
    center_crop: bool = Field(True, description="see the middle 90% of an image's area, as after random cropping")
    resample: Resample = Field("lanczos", description="filter for images of another size than the model's")
    unnorm_key: str | None = Field(
        None, description="data set whose statistics scale the actions; null for the checkpoint's only one"
    )
    gripper: Gripper = Field(
        "binary_inverted", description="1 is open in the data, -1 in LIBERO; as_predicted leaves the last dimension"
    )
    max_prompt_tokens: int = Field(64, ge=1, le=2048, description="I, tokens of the longest prompt")

    @property
    def num_action_tokens(self) -> int:
        """L = C·A, the tokens of one decision."""
        return self.chunk_size * self.action_dim

    @property
    def observation_keys(self) -> list[str]:
        """The columns that are observed before each decision, beside the instruction."""
        return list(self.cameras)

    @property
    def observation_shapes(self) -> dict[str, tuple[int | None, ...]]:
        """Which shapes they must have; ``None`` is any size."""
        return dict.fromkeys(self.cameras, (None, None, 3))

    @model_validator(mode="after")
    def _cameras_differ(self) -> Self:
        if len(set(self.cameras)) < len(self.cameras):
            raise ValueError(f"cameras={list(self.cameras)}: each only once")
        return self
