"""The configuration of training on replayed transitions (soft actor-critic)."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from embodyflow.algorithms.algorithm_config import AlgorithmConfig
from embodyflow.config.base import Config, PositiveFloat, PositiveInt
from embodyflow.config.trainer import TrainerConfig
from embodyflow.policies.policy_config import ControlPolicyConfig


class TemperatureConfig(Config):
    """The coefficient α of the policy's entropy.

    Attributes:
        initial: α at the start.
        learning_rate: Learning rate of log α; 0 keeps α as it is.
        target_entropy: Entropy in nats that α is adapted to; ``null`` means the number of the action's dimensions,
            negated.
    """

    initial: PositiveFloat = 1.0
    learning_rate: Annotated[float, Field(ge=0)] = 3e-4
    target_entropy: float | None = None


class OffPolicyConfig(Config):
    """How policy and critics learn from the replay buffer, for soft actor-critic.

    Attributes:
        updates_per_transition: Updates of policy and critics per new transition, once there are more than
            ``random_transitions``.
        random_transitions: Transitions at the start of the run whose actions are drawn uniformly.
        batch_size: Transitions of one update.
        num_return_steps: Steps over which rewards are summed before the critics' value of the next state is added.
        replay_capacity: Newest transitions to draw from.
        demonstrations: Folder ``replay`` of a finished run. Half of each batch is drawn from its transitions; ``null``
            draws from the run's own alone.
        target_rate: Share of the critics' weights that each update moves into the target critics.
        temperature: Coefficient of the entropy.
    """

    updates_per_transition: PositiveFloat = 1.0
    random_transitions: Annotated[int, Field(ge=0, strict=True)] = 100
    batch_size: Annotated[int, Field(ge=2, strict=True)] = 256
    num_return_steps: PositiveInt = 1
    replay_capacity: PositiveInt = 1_000_000
    demonstrations: str | None = None
    target_rate: Annotated[float, Field(gt=0, le=1)] = 0.005
    temperature: TemperatureConfig = TemperatureConfig()

    @field_validator("demonstrations")
    @classmethod
    def _check_demonstrations(cls, folder: str | None) -> str | None:
        if folder is not None and not Path(folder, "replay.json").is_file():
            raise ValueError("has no replay.json; allowed is the folder replay of a run by algorithm=sac")
        return folder

    def num_updates(self, num_transitions: int) -> int:
        """Return the number of updates in a run by the time it has so many transitions."""
        return int(self.updates_per_transition * max(num_transitions - self.random_transitions, 0))


READ_OF_ALGORITHM = {"gamma"}
READ_OF_TRAINER = {
    *("learning_rate", "schedule", "schedule_iterations", "weight_decay", "max_grad_norm", "adam_epsilon"),
    "keep_checkpoints",
}
"""Keys of the sections ``algorithm`` and ``trainer`` that have a meaning in off-policy training."""


def check_off_policy(policy: ControlPolicyConfig, algorithm: AlgorithmConfig, trainer: TrainerConfig) -> None:
    """Refuse a policy that cannot learn off-policy, and settings that have no meaning there.

    Raises:
        ValueError: One line with the key and what is allowed.
    """
    if not policy.off_policy:
        raise ValueError(f"policy.name={policy.name}: learns on-policy; allowed with off_policy is mlp_squashed")
    _refuse("algorithm", algorithm, AlgorithmConfig(), READ_OF_ALGORITHM)
    defaults = TrainerConfig(learning_rate=trainer.learning_rate, epochs=1, num_ranks=1, num_minibatches=1)
    _refuse("trainer", trainer, defaults, READ_OF_TRAINER)


def _refuse(
    section: Literal["algorithm", "trainer"],
    given: AlgorithmConfig | TrainerConfig,
    defaults: AlgorithmConfig | TrainerConfig,
    read: set[str],
) -> None:
    for key in [each for each in type(given).model_fields if each not in read]:
        value, default = getattr(given, key), getattr(defaults, key)
        if value != default:
            raise ValueError(f"{section}.{key}={value}: has no meaning with off_policy; allowed is {default}")
