"""The configuration of training on replayed transitions."""

import json
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from embodyflow.algorithms.algorithm_config import AlgorithmConfig
from embodyflow.config.base import Config, FunctionName, PositiveFloat, PositiveInt
from embodyflow.config.robots.hindsight import HindsightConfig
from embodyflow.config.robots.prioritized import PrioritizedConfig, check_prioritized
from embodyflow.config.robots.unread_keys import refuse_unread
from embodyflow.config.trainer import TrainerConfig
from embodyflow.policies.policy_config import ActingPolicyConfig
from embodyflow.policies.policy_registry import shipped_configs


class TemperatureConfig(Config):
    """The coefficient α of the policy's entropy.

    Attributes:
        initial: α at the start.
        learning_rate: Learning rate of log α; 0 keeps α as it is.
        target_entropy: Entropy in nats that α is adapted to; ``null`` means the number of the action's dimensions,
            negated.
    """

    initial: PositiveFloat = 1.0
    learning_rate: Annotated[float, Field(ge=0, le=100)] = 3e-4
    target_entropy: float | None = None


class OffPolicyConfig(Config):
    """How policy and critics learn from the replay buffer, whichever algorithm takes the updates.

    Attributes:
        learner: Class ``module:Class`` that takes the updates.
        updates_per_transition: Updates of the critics per new transition, once there are more than
            ``random_transitions``.
        policy_delay: Updates of the critics per update of the policy. Update i of the run, from 0, updates the policy
            if i + 1 is a multiple of it.
        critic_updates: Updates at the start of the run that leave the policy as it is.
        random_transitions: Transitions at the start of the run whose actions are drawn uniformly.
        batch_size: Transitions of one update.
        num_return_steps: Steps over which rewards are summed before the critics' value of the next state is added.
        replay_capacity: Newest transitions to draw from.
        demonstrations: Folder ``replay`` of a finished run. Half of each batch is drawn from its transitions; ``null``
            draws from the run's own alone. An embodied job has the demonstrations of ``warm_start`` in its place, or
            draws from none.
        potential: Function ``module:function`` of states that shapes the rewards; see
            :mod:`embodyflow.training.off_policy.shaping`.
        hindsight: Relabelling of transitions with goals that their episodes achieved; ``null`` keeps all goals as they
            are. Control jobs only.
        prioritized: Draws in proportion to the critics' errors; ``null`` draws uniformly. Control jobs only.
        episode_trainer: Engine of the trainer group in an embodied job.
    """

    learner: ClassVar[str]
    episode_trainer: ClassVar[str] = "embodyflow.training.off_policy.episode_trainer:EpisodeOffPolicyTrainer"

    updates_per_transition: Annotated[float, Field(gt=0, le=10_000)] = 1.0
    policy_delay: PositiveInt = 1
    critic_updates: Annotated[int, Field(ge=0, strict=True)] = 0
    random_transitions: Annotated[int, Field(ge=0, strict=True)] = 100
    batch_size: Annotated[int, Field(ge=2, strict=True)] = 256
    num_return_steps: PositiveInt = 1
    replay_capacity: PositiveInt = 1_000_000
    demonstrations: str | None = None
    potential: FunctionName | None = None
    hindsight: HindsightConfig | None = None
    prioritized: PrioritizedConfig | None = None

    @field_validator("demonstrations")
    @classmethod
    def _check_demonstrations(cls, folder: str | None) -> str | None:
        if folder is not None and not Path(folder, "replay.json").is_file():
            raise ValueError("has no replay.json; allowed is the folder replay of an off-policy run")
        return folder

    def num_updates(self, num_transitions: int) -> int:
        """Return the number of updates in a run by the time it has so many transitions."""
        return int(self.updates_per_transition * max(num_transitions - self.random_transitions, 0))


class TargetsConfig(OffPolicyConfig):
    """Base of the settings of algorithms with target critics.

    Attributes:
        target_rate: Share of the critics' weights that each update moves into the target critics.
    """

    target_rate: Annotated[float, Field(gt=0, le=1)] = 0.005


class MaximumEntropyConfig(TargetsConfig):
    """Base of the settings of soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905).

    Attributes:
        num_target_critics: Target critics whose least value is the target, drawn for each update; ``null`` means all.
        policy_value: Value of an action that the policy maximises: the least or the mean of the critics' values.
        entropy_backup: Include the policy's entropy in the critics' targets.
        temperature: Coefficient of the entropy.
    """

    num_target_critics: PositiveInt | None = None
    policy_value: Literal["least", "mean"] = "least"
    entropy_backup: bool = True
    temperature: TemperatureConfig = TemperatureConfig()


class SoftActorCriticConfig(MaximumEntropyConfig):
    """Soft actor-critic, with RLPD's choices (Ball et al. 2023, arXiv:2302.02948).

    Attributes:
        imitation_coef: Coefficient of the negative log-density of the demonstrated actions in the policy's loss, which
            keeps the policy near the demonstrations (Nair et al. 2018, arXiv:1709.10089). RLPD has none.
    """

    learner: ClassVar[str] = "embodyflow.training.off_policy.soft_actor_critic:SoftActorCritic"

    name: Literal["sac"] = "sac"
    imitation_coef: Annotated[float, Field(ge=0)] = 0.0


class ImageActorCriticConfig(SoftActorCriticConfig):
    """Soft actor-critic on images that are shifted at random (DrQ; Kostrikov et al. 2020, arXiv:2004.13649).

    Attributes:
        shift: Largest shift of an image in pixels along each side. Pixels at the border repeat.
    """

    learner: ClassVar[str] = "embodyflow.training.off_policy.image_actor_critic:ImageActorCritic"

    name: Literal["drq"] = "drq"  # type: ignore[assignment]
    shift: Annotated[int, Field(ge=0, le=64, strict=True)] = 4


class TwinDelayedConfig(TargetsConfig):
    """TD3 (Fujimoto et al. 2018, arXiv:1802.09477).

    Attributes:
        target_noise: Standard deviation of the noise that smooths the target policy's actions.
        target_noise_clip: Largest absolute value of that noise.
    """

    learner: ClassVar[str] = "embodyflow.training.off_policy.twin_delayed:TwinDelayed"

    name: Literal["td3"] = "td3"
    policy_delay: PositiveInt = 2
    target_noise: Annotated[float, Field(ge=0)] = 0.2
    target_noise_clip: Annotated[float, Field(ge=0)] = 0.5


class CrossQConfig(OffPolicyConfig):
    """CrossQ (Bhatt et al. 2024, arXiv:1902.05605): soft actor-critic with batch renormalisation and without targets.

    Attributes:
        adam_beta1: Decay rate of the first moment in the optimizers of policy and critics.
        temperature: Coefficient of the entropy.
    """

    learner: ClassVar[str] = "embodyflow.training.off_policy.crossq:CrossQ"

    name: Literal["crossq"] = "crossq"
    policy_delay: PositiveInt = 3
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.5
    temperature: TemperatureConfig = TemperatureConfig(learning_rate=1e-3)


class ImplicitQConfig(TargetsConfig):
    """Implicit Q-learning (Kostrikov et al. 2022, arXiv:2110.06169), which values no action outside of its data.

    Attributes:
        updates_per_iteration: Updates of an iteration of the pipeline ``offline``.
        expectile: τ of the values of states; the higher it is, the more they are those of the best actions.
        inverse_temperature: β, by which advantages weigh actions in the policy's likelihood; 0 imitates all alike.
        largest_weight: Bound of such a weight.
    """

    learner: ClassVar[str] = "embodyflow.training.off_policy.implicit_q:ImplicitQLearning"

    name: Literal["iql"] = "iql"
    updates_per_iteration: PositiveInt = 1000
    random_transitions: Annotated[int, Field(ge=0, strict=True)] = 0
    expectile: Annotated[float, Field(gt=0, lt=1)] = 0.7
    inverse_temperature: Annotated[float, Field(ge=0)] = 3.0
    largest_weight: PositiveFloat = 100.0


class SteeringConfig(MaximumEntropyConfig):
    """DSRL (Wagenmaker et al. 2025, arXiv:2506.15799): soft actor-critic over the noise of a frozen policy."""

    learner: ClassVar[str] = "embodyflow.training.off_policy.soft_actor_critic:MaximumEntropyLearner"
    episode_trainer: ClassVar[str] = "embodyflow.training.off_policy.steering_trainer:SteeringTrainer"

    name: Literal["dsrl"] = "dsrl"


Learner = (
    SoftActorCriticConfig | ImageActorCriticConfig | TwinDelayedConfig | CrossQConfig | ImplicitQConfig | SteeringConfig
)
"""Settings of one algorithm."""

LearnerConfig = Annotated[Learner, Field(discriminator="name")]
"""The section ``off_policy``, by its ``name``."""

READ_OF_ALGORITHM = {"gamma"}
READ_OF_TRAINER = {
    *("learning_rate", "schedule", "schedule_iterations", "weight_decay", "max_grad_norm", "adam_epsilon"),
    *("keep_checkpoints", "iterations_per_commit", "compile"),
}
"""Keys of the sections ``algorithm`` and ``trainer`` that have a meaning in off-policy training."""


def check_off_policy(
    settings: Learner,
    policy: ActingPolicyConfig,
    algorithm: AlgorithmConfig,
    trainer: TrainerConfig,
) -> None:
    """Refuse a policy that does not learn by this algorithm, and settings that have no meaning in it.

    Args:
        settings: How policy and critics learn.
        policy: Policy to train.
        algorithm: Settings of the section ``algorithm``.
        trainer: Settings of the section ``trainer``.

    Raises:
        ValueError: One line with the key and what is allowed.
    """
    if policy.off_policy != settings.name:
        learns = "learns on-policy" if policy.off_policy is None else f"learns by {policy.off_policy}"
        fitting = [each for each in shipped_configs(ActingPolicyConfig) if each.job == policy.job]
        names = [
            each.model_fields["name"].default for each in fitting if getattr(each, "off_policy", None) == settings.name
        ]
        allowed = " or ".join(names) or f"another job than {policy.job}"
        raise ValueError(
            f"policy.name={policy.name}: {learns}; allowed with off_policy.name={settings.name} is {allowed}"
        )
    refuse_unread("algorithm", algorithm, AlgorithmConfig(), READ_OF_ALGORITHM, "off_policy")
    defaults = TrainerConfig(learning_rate=trainer.learning_rate, epochs=1, num_ranks=1, num_minibatches=1)
    refuse_unread("trainer", trainer, defaults, READ_OF_TRAINER, "off_policy")
    wanted, present = getattr(settings, "num_target_critics", None), getattr(policy, "num_critics", None)
    if wanted is not None and present is not None and wanted > present:
        raise ValueError(f"off_policy.num_target_critics={wanted}: must be at most policy.num_critics={present}")
    if settings.prioritized is not None:
        check_prioritized(
            settings.name,
            is_control=policy.job == "control",
            has_demonstrations=settings.demonstrations is not None,
            has_hindsight=settings.hindsight is not None,
        )
    if settings.demonstrations is not None:
        _check_sizes(settings.demonstrations, policy)


def _check_sizes(folder: str, policy: ActingPolicyConfig) -> None:
    """Refuse the transitions of another run if it has none, has images, or has other sizes than the policy."""
    key = f"off_policy.demonstrations={folder}"
    try:
        facts = json.loads(Path(folder, "replay.json").read_text())
        length, *sizes = (int(facts[name]) for name in ("length", "state_dim", "action_dim"))
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{key}: its replay.json is damaged; allowed is the folder of an off-policy run") from error
    if length < 1:
        raise ValueError(f"{key}: holds no transitions; allowed is the folder of a run that has some")
    wanted = [getattr(policy, "state_dim", None), policy.decision_dim]
    if sizes != wanted:
        raise ValueError(
            f"{key}: has states of {sizes[0]} and actions of {sizes[1]} numbers; allowed are those of the policy, "
            f"{wanted[0]} and {wanted[1]}"
        )
    if facts.get("cameras"):
        raise ValueError(f"{key}: has images; allowed are transitions of states, of a run with job=control")


def check_steering(policy: ActingPolicyConfig, *, has_warm_start: bool, chunk_correlation: float) -> None:
    """Refuse a frozen policy of random weights, and noise that is drawn otherwise than the policy says.

    Args:
        policy: Policy that steers a frozen one.
        has_warm_start: Whether the frozen policy starts from demonstrations.
        chunk_correlation: Setting of the section ``rollout``.

    Raises:
        ValueError: One line with the key and what is allowed.
    """
    if not has_warm_start and getattr(policy, "path", None) is None:
        raise ValueError(
            "warm_start=null: must be set with off_policy.name=dsrl and policy.path=null, since the policy that is "
            "frozen must be able to act"
        )
    if chunk_correlation:
        raise ValueError(
            f"rollout.chunk_correlation={chunk_correlation:g}: must be 0 with off_policy.name=dsrl; the policy chooses "
            "the noise, and policy.share_noise=true gives all actions of a chunk the same"
        )
