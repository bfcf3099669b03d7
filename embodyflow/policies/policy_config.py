"""Base classes of the policies' configurations.

The base class says which kind of job a policy is for, of another package's policy too. Language policies extend
:class:`~embodyflow.policies.language.causal_lm.configuration_causal_lm.CausalLMConfig`.
"""

from abc import abstractmethod
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

Shape = tuple[int | None, ...]
"""Shape of an observation; ``None`` is any size."""


class PolicyConfig(BaseModel):
    """Base of every policy's configuration: frozen, and an unknown key is an error.

    Attributes:
        job: Kind of job that the policy is for.
        entropy_varies: Whether the entropy of an action token depends on the observation.
        entropy_is_density: Whether it is the entropy of a density, which may be negative.
        has_features: Whether a value head can read the policy's features; see
            :class:`~embodyflow.policies.base.FeaturePolicy`.
        name: Name of a shipped policy, or ``module:Class`` of another package's.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    job: ClassVar[str]
    entropy_varies: ClassVar[bool] = True
    entropy_is_density: ClassVar[bool] = False
    has_features: ClassVar[bool] = False

    name: str

    @property
    def advantage_weights(self) -> tuple[float, ...] | None:
        """Factors of the advantage by token of a decision, L of them; ``None`` if its tokens share the advantage."""
        return None


class ActingPolicyConfig(PolicyConfig):
    """Base of the configurations of policies that act in environments.

    ``action_dim`` and ``state_dim`` are the environment's where they are null, or are not set and have no default.

    Attributes:
        off_policy: Value of ``off_policy.name`` by which the policy learns from replayed transitions; ``None`` if it
            learns on-policy. Its actions then lie in [-1, 1]; see :class:`~embodyflow.policies.base.OffPolicy`.
        compiles: Whether ``trainer.compile`` may be set, in control jobs and off-policy, and on-policy steps are traced
            to a graph: what policy and critic compute in training has tensors only, draws nothing, and takes no
            decision by their values.
    """

    off_policy: ClassVar[str | None] = None
    compiles: ClassVar[bool] = False

    action_dim: int = Field(ge=1, description="A, dimensions of one action.")

    @property
    @abstractmethod
    def decision_dim(self) -> int:
        """Numbers that one decision consists of, C·A unless it is noise."""

    @property
    @abstractmethod
    def observation_shapes(self) -> dict[str, Shape]:
        """Shape of each observation that the policy reads before a decision, by name; the instruction is left out."""

    @property
    def replayed_images(self) -> dict[str, tuple[int, int, int]]:
        """Shape ``(H, W, 3)`` of the images that off-policy training replays, by camera; most policies have none."""
        return {}

    @property
    def observation_keys(self) -> list[str]:
        """Columns that the policy reads before each decision, beside the instruction."""
        return list(self.observation_shapes)


class EmbodiedPolicyConfig(ActingPolicyConfig):
    """Base of the configurations of policies that play episodes of an instruction in chunks of actions.

    Attributes:
        reads_instruction: Whether the policy can tell tasks apart by their instructions.
        needs_quantiles: Whether states and actions are normalised by the 1% and 99% quantiles.
    """

    job: ClassVar[str] = "embodied"
    reads_instruction: ClassVar[bool] = True
    needs_quantiles: ClassVar[bool] = False

    chunk_size: int = Field(ge=1, description="C, actions of one decision.")

    @property
    def choices(self) -> tuple[int, ...] | None:
        """Numbers of choices in each dimension of a discrete action, ``A`` of them; ``None`` for continuous actions.

        The policy's actions are then indices from 0 in each dimension.
        """
        return None

    @property
    def action_dims_by_member(self) -> tuple[int, ...] | None:
        """Dimensions of an action by member of ``env.members``; ``None`` if the policy plays one kind of environment.

        Such a policy observes ``member``, int64 ``[1]``, and its decisions have a token for each of the A dimensions.
        The tokens of the dimensions that a member lacks are padding.
        """
        return None

    @property
    def decision_dim(self) -> int:
        """Numbers that one decision consists of, C·A."""
        return self.chunk_size * self.action_dim

    @property
    def num_action_tokens(self) -> int:
        """L, log-probs of one decision: C·A unless the policy says otherwise."""
        return self.chunk_size * self.action_dim


class ControlPolicyConfig(ActingPolicyConfig):
    """Base of the configurations of policies for control, which read a state and decide on one action.

    Attributes:
        discrete_policy: Name of the shipped policy that takes this one's place if ``policy.action_dim`` is null and
            the environment's action space is ``Discrete``; ``None`` if no policy does.
    """

    job: ClassVar[str] = "control"
    discrete_policy: ClassVar[str | None] = None
    state_dim: int = Field(ge=1, description="S, features of the state.")

    @property
    def chunk_size(self) -> int:
        """C = 1, actions of one decision."""
        return 1

    @property
    def decision_dim(self) -> int:
        """Numbers that one decision consists of, A."""
        return self.action_dim

    @property
    def num_action_tokens(self) -> int:
        """L = 1: an action has one log-prob."""
        return 1

    @property
    def observation_shapes(self) -> dict[str, Shape]:
        """Shape of the state."""
        return {"state": (self.state_dim,)}


class DiscreteControlPolicyConfig(ControlPolicyConfig):
    """Base of the configurations of policies for control that choose one of K actions (``Discrete(K)``)."""

    action_dim: Literal[1] = Field(1, description="A = 1: an action is one number.")
    num_actions: int = Field(ge=1, le=4096, description="K, actions to choose from.")
