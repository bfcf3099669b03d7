"""Configuration of the diffusion policy: its sizes, its denoising steps, and which of them RL trains."""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from embodyflow.policies.policy_config import EmbodiedPolicyConfig, Shape


class DiffusionConfig(EmbodiedPolicyConfig):
    """Configuration of :class:`~embodyflow.policies.embodied.diffusion.policy_diffusion.DiffusionPolicy`."""

    reads_instruction: ClassVar[bool] = False
    entropy_varies: ClassVar[bool] = False
    entropy_is_density: ClassVar[bool] = True

    name: Literal["diffusion"] = "diffusion"
    state_dim: int = Field(ge=1, le=4096, description="S, features of the state.")
    action_dim: int = Field(ge=1, le=64, description="A, dimensions of one action.")
    chunk_size: int = Field(5, ge=1, le=64, description="C, actions of one decision.")
    # A processor rounds numbers that fill its lanes otherwise than those left over, and no row may depend on its place.
    hidden_size: int = Field(
        256, ge=16, le=4096, multiple_of=16, description="Features of the residual stream, a multiple of 16."
    )
    num_layers: int = Field(3, ge=1, le=32, description="Residual MLPs.")
    num_noise_levels: int = Field(100, ge=1, le=1000, description="N, noise levels that imitation trains on.")
    num_steps: int = Field(10, ge=1, le=1000, description="K, denoising steps of one decision.")
    num_trained_steps: int = Field(5, ge=1, le=1000, description="K', last denoising steps, which RL trains.")
    eta: float = Field(1.0, ge=0, le=1, description="η, share of DDPM's noise in a step; 0 leaves min_noise alone.")
    min_noise: float = Field(
        0.2, gt=0, le=1, description="Least deviation of a step's noise, in deviations of the demonstrated actions."
    )
    min_log_prob_noise: float = Field(
        0.2, gt=0, le=1, description="Least deviation in log-probs, at least min_noise; more makes ratios less steep."
    )
    denoising_discount: float = Field(
        0.99, gt=0, le=1, description="Factor of the advantage for each step between a denoising step and the last one."
    )

    @property
    def num_action_tokens(self) -> int:
        """L = C·K': each trained denoising step of each action has a log-prob."""
        return self.chunk_size * self.num_trained_steps

    @property
    def observation_shapes(self) -> dict[str, Shape]:
        """Shape of the state."""
        return {"state": (self.state_dim,)}

    @property
    def advantage_weights(self) -> tuple[float, ...] | None:
        """Factors of the advantage, which fall towards noise; ``None`` if all are 1.

        DPPO (Ren et al., 2024, arXiv:2409.00588) discounts the advantage of a decision between its denoising steps, as
        noisy steps say little about the action. The factor belongs to the step and not to the estimate, so it goes with
        advantages of groups as with those of a critic: given the steps before, the score of a step has mean zero, and
        any baseline times any constant factor adds no bias.
        """
        if self.denoising_discount == 1 or self.num_trained_steps == 1:
            return None
        steps = reversed(range(self.num_trained_steps))
        return tuple(self.denoising_discount**left for left in steps) * self.chunk_size

    @model_validator(mode="after")
    def _check(self) -> Self:
        for key, limit in (("num_steps", "num_noise_levels"), ("num_trained_steps", "num_steps")):
            if getattr(self, key) > getattr(self, limit):
                raise ValueError(f"{key}={getattr(self, key)}: must be at most {limit}={getattr(self, limit)}")
        if self.min_log_prob_noise < self.min_noise:
            raise ValueError(
                f"min_log_prob_noise={self.min_log_prob_noise:g}: must be at least min_noise={self.min_noise:g}"
            )
        return self
