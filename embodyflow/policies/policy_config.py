"""Base classes of the policies' configurations.

The base class says which kind of job a policy is for, of another package's policy too. Language policies extend
:class:`~embodyflow.policies.causal_lm.configuration_causal_lm.CausalLMConfig`.
"""

from abc import abstractmethod
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

Shape = tuple[int | None, ...]
"""Shape of an observation; ``None`` is any size."""


class PolicyConfig(BaseModel):
    """Base of every policy's configuration: frozen, and an unknown key is an error.

    Attributes:
        job: Kind of job that the policy is for.
        name: Name of a shipped policy, or ``module:Class`` of another package's.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    job: ClassVar[str]

    name: str


class ActingPolicyConfig(PolicyConfig):
    """Base of the configurations of policies that act in environments.

    ``action_dim`` and ``state_dim`` are the environment's where they are null, or are not set and have no default.
    """

    action_dim: int = Field(ge=1, description="A, dimensions of one action.")

    @property
    @abstractmethod
    def observation_shapes(self) -> dict[str, Shape]:
        """Shape of each observation that the policy reads before a decision, by name; the instruction is left out."""

    @property
    def observation_keys(self) -> list[str]:
        """Columns that the policy reads before each decision, beside the instruction."""
        return list(self.observation_shapes)


class EmbodiedPolicyConfig(ActingPolicyConfig):
    """Base of the configurations of policies that play episodes of an instruction in chunks of actions."""

    job: ClassVar[str] = "embodied"

    chunk_size: int = Field(ge=1, description="C, actions of one decision.")

    @property
    def num_action_tokens(self) -> int:
        """L, log-probs of one decision: C·A unless the policy says otherwise."""
        return self.chunk_size * self.action_dim


class ControlPolicyConfig(ActingPolicyConfig):
    """Base of the configurations of policies for continuous control, which read a state and decide on one action."""

    job: ClassVar[str] = "control"

    state_dim: int = Field(ge=1, description="S, features of the state.")

    @property
    def chunk_size(self) -> int:
        """C = 1, actions of one decision."""
        return 1

    @property
    def num_action_tokens(self) -> int:
        """L = 1: an action has one log-prob."""
        return 1

    @property
    def observation_shapes(self) -> dict[str, Shape]:
        """Shape of the state."""
        return {"state": (self.state_dim,)}
