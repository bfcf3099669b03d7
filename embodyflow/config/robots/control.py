"""Control jobs: a policy takes a fixed number of steps per iteration, and every step has a reward."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field, SerializeAsAny, model_validator

from embodyflow.config.base import PositiveInt
from embodyflow.config.robots.environment import (
    EnvConfig,
    SteppingConfig,
    check_batch_processes,
    check_memory_limit,
    unrestorable_tasks,
)
from embodyflow.config.robots.hindsight import check_hindsight
from embodyflow.config.robots.off_policy import LearnerConfig, check_off_policy
from embodyflow.config.robots.traced_steps import what_prevents_compiled_updates, what_prevents_tracing
from embodyflow.config.run import EvaluationConfig, GroupShape, Records, RolloutConfig, RunConfig
from embodyflow.config.summary import evaluated_return_summary, return_line, return_summary
from embodyflow.policies.policy_config import ControlPolicyConfig
from embodyflow.policies.policy_registry import check_training

OFF_POLICY_ENGINES = {
    "rollout": "embodyflow.rollouts.transition_rollout:TransitionRollout",
    "trainer": "embodyflow.training.off_policy.trainer:OffPolicyTrainer",
}
"""Engine of each worker group in off-policy training."""


class StepRolloutConfig(SteppingConfig, RolloutConfig):
    """How rollout workers collect steps. Episodes continue across iterations.

    Attributes:
        num_steps: Steps of each environment per iteration.
    """

    num_steps: PositiveInt


class ReturnEvaluationConfig(EvaluationConfig):
    """When the policy is evaluated, and on how many episodes.

    Attributes:
        num_episodes: Episodes of an evaluation, each played once with the policy's deterministic actions.
    """

    num_episodes: Annotated[int, Field(ge=5, le=100_000, strict=True)] = 10


class ControlConfig(RunConfig):
    """The configuration of a control run.

    Attributes:
        warm_start: Always ``null``, since a control job has no demonstrations.
        evaluation: Evaluation of the deterministic policy; ``null`` reports the returns of training episodes only.
        off_policy: Training on replayed transitions; ``null`` trains on the rows of the iteration.
    """

    kind: ClassVar[str] = "control"
    rollout_engine: ClassVar[str] = "embodyflow.rollouts.control_rollout:ControlRollout"
    pipelines: ClassVar[tuple[str, ...]] = ("ppo_control", "sac", "offline")
    check: ClassVar[str] = "embodyflow.simulation.make_env:check_control"
    resume_check: ClassVar[str | None] = "embodyflow.simulation.make_env:check_restorable"
    evaluator: ClassVar[str] = "embodyflow.orchestration.evaluation.returns:evaluate_returns"
    policy_evaluator: ClassVar[str | None] = "embodyflow.orchestration.evaluation.returns:evaluate_policy"

    policy: SerializeAsAny[ControlPolicyConfig]
    env: EnvConfig
    rollout: StepRolloutConfig
    warm_start: None = None
    evaluation: ReturnEvaluationConfig | None = None
    off_policy: LearnerConfig | None = None

    @model_validator(mode="after")
    def _check_env_processes(self) -> "ControlConfig":
        check_memory_limit(self.env, self.rollout.env_processes)
        check_batch_processes(self.env, self.rollout.env_processes)
        return self

    @model_validator(mode="after")
    def _refuse_instructions(self) -> "ControlConfig":
        if self.env.members:
            raise ValueError(f"env.members: must be empty with policy.name={self.policy.name}")
        if self.env.tasks:
            raise ValueError(f"env.tasks must be [] with policy.name={self.policy.name}")
        return self

    @model_validator(mode="after")
    def _require_joint_training(self) -> "ControlConfig":
        if self.critic.epochs != self.trainer.epochs:
            raise ValueError(
                f"critic.epochs={self.critic.epochs}: must be trainer.epochs={self.trainer.epochs} with "
                f"job={self.kind}, which trains policy and critic in the same optimizer steps"
            )
        if self.algorithm.needs_reference:
            raise ValueError(f"algorithm.kl.coef must be 0 with job={self.kind}, which has no reference policy")
        return self

    def check_stale_rows(self) -> None:
        """Refuse stale rows: each iteration continues the episodes of the previous one."""
        if self.rollout.max_staleness:
            raise ValueError(
                f"rollout.max_staleness={self.rollout.max_staleness}: allowed is 0 with job={self.kind}, where each "
                "iteration continues the episodes of the previous one"
            )

    def what_prevents_tracing(self) -> str | None:
        """Return one line with what prevents traced steps; ``None`` if nothing does."""
        if self.off_policy is not None:
            return what_prevents_compiled_updates(self.policy, self.cluster.device)
        return what_prevents_tracing(self.trainer, self.algorithm, self.policy, self.cluster.device)

    @model_validator(mode="after")
    def _check_off_policy(self) -> "ControlConfig":
        if self.off_policy is not None:
            check_off_policy(self.off_policy, self.policy, self.algorithm, self.trainer)
            check_training(self.policy, needs_critic="off_policy", has_demonstrations=False)
            if self.off_policy.hindsight is not None:
                check_hindsight(
                    self.env,
                    num_return_steps=self.off_policy.num_return_steps,
                    has_demonstrations=self.off_policy.demonstrations is not None,
                )
        elif self.policy.off_policy is not None:
            raise ValueError(
                f"policy.name={self.policy.name}: needs off_policy (algorithm={self.policy.off_policy}); allowed "
                "without it are mlp_gaussian and mlp_categorical"
            )
        return self

    @property
    def groups(self) -> dict[str, GroupShape]:
        """Worker groups by name; off-policy training has engines of its own."""
        shapes = super().groups
        if self.off_policy is None:
            return shapes
        own = OFF_POLICY_ENGINES | {"evaluation": OFF_POLICY_ENGINES["rollout"]}
        return {role: shape._replace(engine=own[role]) for role, shape in shapes.items()}

    @property
    def task_name(self) -> str:
        """The environment's id."""
        return self.env.id

    @property
    def rows_per_iteration(self) -> int:
        """Steps of all environments in one iteration."""
        return self.rollout.num_workers * self.rollout.envs_per_worker * self.rollout.num_steps

    @property
    def longest_row(self) -> tuple[int, str]:
        """Tokens of the longest episode, one per action, and its description."""
        return self.env.max_steps, f"an episode of env.max_steps={self.env.max_steps}"

    @property
    def row_capacity(self) -> int:
        """Tokens of a training row: one, since each row is a decision with one log-prob."""
        return 1

    def unrestorable(self) -> dict[str, str]:
        """Return the tasks whose episodes are not restored by their seed; see :func:`unrestorable_tasks`."""
        return unrestorable_tasks(self.env, self.rollout)

    def summarize(self, records: Records) -> dict[str, Any]:
        """Return mean returns of training episodes and, with ``evaluation``, those before and after training."""
        evaluated = {} if self.evaluation is None else evaluated_return_summary(records, self.iterations)
        return return_summary(records) | evaluated

    @staticmethod
    def summary_line(summary: Mapping[str, Any]) -> str:
        """Format the returns as one line."""
        return return_line(summary)
