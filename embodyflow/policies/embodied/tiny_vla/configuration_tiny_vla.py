"""Configuration of TinyVLA."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from embodyflow.policies.observations import MEMBER_KEY
from embodyflow.policies.policy_config import EmbodiedPolicyConfig, Shape


class TinyVLAConfig(EmbodiedPolicyConfig):
    """Sizes of :class:`~embodyflow.policies.embodied.tiny_vla.modeling_tiny_vla.TinyVLA`, saved as ``config.json``."""

    has_features: ClassVar[bool] = True

    name: Literal["tiny_vla"] = "tiny_vla"
    state_dim: int = Field(30, ge=0, le=4096, description="S, features of the state; 0 reads images alone.")
    image_size: int | None = Field(None, ge=16, le=512, description="Pixels a side; null reads no images.")
    cameras: tuple[str, ...] = Field(("image",), min_length=1, description="Keys of the images in the observation.")
    action_dim: int = Field(4, ge=1, le=64, description="A, dimensions of one action.")
    chunk_size: int = Field(5, ge=1, le=64, description="C, actions of one decision.")
    num_bins: int = Field(256, ge=2, le=1024, description="Values of a token of continuous actions.")
    num_bumps: int = Field(32, ge=2, le=1024, description="Smooth functions that the logits of such a token sum up.")
    num_choices: tuple[Annotated[int, Field(ge=1, le=1024)], ...] | None = Field(
        None, description="Choices in each dimension of a discrete action; null for continuous actions."
    )
    member_action_dims: tuple[Annotated[int, Field(ge=1, le=64)], ...] | None = Field(
        None, description="Action dimensions by member of env.members; null for one kind of environment."
    )
    vocab_size: int = Field(512, ge=2, le=65536, description="Hash buckets of words; 0 is padding.")
    max_instruction_length: int = Field(16, ge=1, le=128, description="I, words read of an instruction.")
    hidden_size: int = Field(256, ge=8, le=4096, description="Features of the residual stream.")
    num_layers: int = Field(2, ge=1, le=32, description="Residual MLPs.")
    normalize_observations: bool = Field(False, description="Normalise states by their running mean and variance.")
    observation_clip: float = Field(10.0, gt=0, le=1e6, description="Bound of a normalised feature, in deviations.")

    @property
    def choices(self) -> tuple[int, ...] | None:
        """Numbers of choices; see :class:`~embodyflow.policies.policy_config.EmbodiedPolicyConfig`."""
        return self.num_choices

    @property
    def action_dims_by_member(self) -> tuple[int, ...] | None:
        """Action dimensions; see :class:`~embodyflow.policies.policy_config.EmbodiedPolicyConfig`."""
        return self.member_action_dims

    @property
    def seen_cameras(self) -> tuple[str, ...]:
        """Cameras that the policy reads: none without ``image_size``."""
        return self.cameras if self.image_size is not None else ()

    @property
    def observation_shapes(self) -> dict[str, Shape]:
        """Shapes of state, member and images; each may be missing."""
        state: dict[str, Shape] = {"state": (self.state_dim,)} if self.state_dim else {}
        member: dict[str, Shape] = {} if self.member_action_dims is None else {MEMBER_KEY: (1,)}
        return state | member | dict.fromkeys(self.seen_cameras, (self.image_size, self.image_size, 3))

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.state_dim == 0 and self.image_size is None:
            raise ValueError("state_dim=0 needs image_size: a policy must observe something")
        if self.state_dim == 0 and self.normalize_observations:
            raise ValueError("normalize_observations=true: must be false with state_dim=0, which has no state")
        if self.num_choices is not None and len(self.num_choices) != self.action_dim:
            raise ValueError(
                f"num_choices={list(self.num_choices)}: must be one number for each of action_dim={self.action_dim}"
            )
        self._check_members()
        if len({*self.cameras, "state"}) <= len(self.cameras) or any("." in camera for camera in self.cameras):
            raise ValueError(f"cameras={list(self.cameras)}: must name each camera once, without dots, none state")
        return self

    def _check_members(self) -> None:
        dims = self.member_action_dims
        if dims is None:
            return
        if max(dims, default=0) != self.action_dim:
            raise ValueError(
                f"member_action_dims={list(dims)}: the largest must be action_dim={self.action_dim}, to which "
                "the others are padded"
            )
        if self.num_choices is not None:
            raise ValueError(f"num_choices={list(self.num_choices)}: must be null with member_action_dims")
        if self.normalize_observations:
            raise ValueError(
                "normalize_observations=true: must be false with member_action_dims, whose states are standardised by "
                "the demonstrations of each member"
            )
