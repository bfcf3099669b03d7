"""Control jobs: a Gaussian policy steps environments a fixed number of times, and each step has its own reward."""

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import SerializeAsAny, model_validator

from embodyflow.config.base import PositiveInt
from embodyflow.config.environment import EnvConfig, SteppingConfig
from embodyflow.config.run import Records, RolloutConfig, RunConfig
from embodyflow.config.summary import return_line, return_summary
from embodyflow.policies.policy_config import ControlPolicyConfig


class StepRolloutConfig(SteppingConfig, RolloutConfig):
    """How steps are gathered; episodes go on over iterations.

    Attributes:
        num_steps: of each environment and iteration.
    """

    num_steps: PositiveInt


class ControlConfig(RunConfig):
    """A run of a control job.

    Attributes:
        warm_start: none, there are no demonstrations.
        evaluation: none, returns are told as they come.
    """

    kind: ClassVar[str] = "control"
    rollout_engine: ClassVar[str] = "embodyflow.rollouts.control_rollout:ControlRollout"
    pipelines: ClassVar[tuple[str, ...]] = ("ppo_control",)
    check: ClassVar[str] = "embodyflow.simulation.make_env:check_control"

    policy: SerializeAsAny[ControlPolicyConfig]
    env: EnvConfig
    rollout: StepRolloutConfig
    warm_start: None = None
    evaluation: None = None

    @model_validator(mode="after")
    def _no_instructions(self) -> "ControlConfig":
        if self.env.tasks:
            raise ValueError(f"env.tasks must be [] with policy.name={self.policy.name}")
        return self

    @model_validator(mode="after")
    def _one_training(self) -> "ControlConfig":
        if self.critic.epochs != self.trainer.epochs:
            raise ValueError(
                f"critic.epochs={self.critic.epochs}: must be trainer.epochs={self.trainer.epochs} with "
                f"job={self.kind}, where policy and critic are trained in the same steps"
            )
        if self.algorithm.needs_reference:
            raise ValueError(f"algorithm.kl.coef must be 0 with job={self.kind}, which has no reference policy")
        return self

    @model_validator(mode="after")
    def _synchronous(self) -> "ControlConfig":
        if self.rollout.max_staleness:
            raise ValueError(
                f"rollout.max_staleness={self.rollout.max_staleness}: allowed is 0 with job={self.kind}, whose "
                "iterations go on where the one before has left the environments"
            )
        return self

    @property
    def rows_per_iteration(self) -> int:
        """Steps of all environments."""
        return self.rollout.num_workers * self.rollout.envs_per_worker * self.rollout.num_steps

    @property
    def longest_row(self) -> tuple[int, str]:
        """An action has one log-prob, and so counts as one token."""
        return self.env.max_steps, f"an episode of env.max_steps={self.env.max_steps}"

    @property
    def row_capacity(self) -> int:
        """One: what is trained on are decisions, each with a log-prob."""
        return 1

    def summarize(self, records: Records) -> dict[str, Any]:
        """Return the returns of the first and the last iteration."""
        return return_summary(records)

    @staticmethod
    def summary_line(summary: Mapping[str, Any]) -> str:
        """Return the returns in a line."""
        return return_line(summary)
