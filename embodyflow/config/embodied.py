"""Embodied jobs: a policy of action tokens plays whole episodes of instructions, and success is all it is told."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field, SerializeAsAny, model_validator

from embodyflow.config.base import Fraction, PositiveInt
from embodyflow.config.environment import EnvConfig, SteppingConfig
from embodyflow.config.grouped import GroupedConfig, GroupRolloutConfig
from embodyflow.config.run import EvaluationConfig, Records, WarmStartConfig
from embodyflow.config.summary import success_line, success_summary, task_summary
from embodyflow.policies.flow_vla.configuration_flow_vla import FlowVLAConfig
from embodyflow.policies.policy_config import EmbodiedPolicyConfig
from embodyflow.references import source_files


class EpisodeRolloutConfig(SteppingConfig, GroupRolloutConfig):
    """How episodes are gathered; a group shares its initial state.

    Attributes:
        chunk_correlation: of the noise that the actions of a chunk are sampled with; 0 draws each token by itself, 1
            gives all of them the same noise. See :func:`~embodyflow.rollouts.action_noise.chunk_uniforms`.
        keep_episodes: iterations, the newest, whose episodes stay in the run's folder, images left out.
        pipelined: with ``env_processes``, half of the environments step while the policy decides for the other half.
            The numbers are the same; false is faster where deciding for half takes as long as for all, and more than
            a chunk does.
    """

    chunk_correlation: Fraction = 0.0
    pipelined: bool = True
    keep_episodes: Annotated[int, Field(ge=0, strict=True)] = 20


class ExpertWarmStartConfig(WarmStartConfig):
    """Supervised fine-tuning on successful episodes of the environment's scripted expert.

    Attributes:
        smoothing_bins: standard deviation, in bins, of the Gaussian the target token is smoothed with.
        action_noise: standard deviation of the noise that the expert's actions are executed with and recorded without,
            so that demonstrations show the way back (DART, Laskey et al., 2017, arXiv:1703.09327).
    """

    samples: ClassVar[str] = "embodyflow.training.imitation:ActionSamples"

    smoothing_bins: Annotated[float, Field(ge=0)]
    action_noise: Annotated[float, Field(ge=0)] = 0.0


class GoalEvaluationConfig(EvaluationConfig):
    """When and on how much the policy is tested.

    Attributes:
        num_goals: goals of the evaluation split per task, each run once per mode.
        video: record an episode before and after, where rendering is available.
    """

    num_goals: PositiveInt
    video: bool = True


class EmbodiedConfig(GroupedConfig):
    """A run of an embodied job."""

    kind: ClassVar[str] = "embodied"
    rollout_engine: ClassVar[str] = "embodyflow.rollouts.embodied_rollout:EmbodiedRollout"
    pipelines: ClassVar[tuple[str, ...]] = (
        *("grpo", "ppo", "embodied_grpo", "embodied_dapo", "embodied_srpo"),
        *("grpo_kl_reward", "ppo_kl_reward"),
    )
    check: ClassVar[str] = "embodyflow.simulation.make_env:check_embodied"
    notes_observations: ClassVar[bool] = True
    warm_start_reads: ClassVar[frozenset[str]] = frozenset({"seed", "env", "policy", "warm_start"})

    policy: SerializeAsAny[EmbodiedPolicyConfig]
    env: EnvConfig
    rollout: EpisodeRolloutConfig
    warm_start: ExpertWarmStartConfig | None
    evaluation: GoalEvaluationConfig

    @model_validator(mode="after")
    def _episodes_fit(self) -> "EmbodiedConfig":
        num_tasks, num_groups = len(self.env.tasks), self.rollout.num_groups
        if not num_tasks:
            raise ValueError(f"env.tasks must be the instructions to follow with policy.name={self.policy.name}")
        if num_groups % num_tasks:
            raise ValueError(
                f"rollout.num_groups={num_groups} must be a multiple of the number of env.tasks ({num_tasks})"
            )
        if self.env.max_steps % self.policy.chunk_size:
            raise ValueError(
                f"env.max_steps={self.env.max_steps} must be a multiple of policy.chunk_size={self.policy.chunk_size}"
            )
        self._check_share("evaluation.num_goals", self.evaluation.num_goals * num_tasks)
        return self

    @model_validator(mode="after")
    def _progress_is_measured(self) -> "EmbodiedConfig":
        if self.progress is None and self.pipeline.source() == {"name": "embodied_srpo"}:
            raise ValueError("progress=null: must say how progress is measured with pipeline.name=embodied_srpo")
        return self

    @model_validator(mode="after")
    def _statistics_are_to_be_had(self) -> "EmbodiedConfig":
        policy = self.policy
        if self.warm_start is not None or not isinstance(policy, FlowVLAConfig) or policy.path is None:
            return self
        if policy.normalization == "demonstrations":
            raise ValueError(
                "policy.normalization=demonstrations: needs a warm_start that has some; allowed is checkpoint with "
                "warm_start=null"
            )
        return self

    @property
    def num_decisions(self) -> int:
        """Policy calls in an episode of full length."""
        return self.env.max_steps // self.policy.chunk_size

    @property
    def longest_row(self) -> tuple[int, str]:
        """Action tokens of an episode of full length."""
        return self.row_capacity, f"an episode of env.max_steps={self.env.max_steps}"

    @property
    def row_capacity(self) -> int:
        """Action tokens of an episode of full length."""
        return self.num_decisions * self.policy.num_action_tokens

    @property
    def kept_iterations(self) -> int:
        """Of how many iterations, the newest, the episodes are kept."""
        return self.rollout.keep_episodes

    @property
    def warm_start_files(self) -> tuple[str, ...]:
        """Return what names files of the model, and of the scene and the modules that experts act in or are."""
        env = self.env
        scenes = (value for value in env.kwargs.values() if isinstance(value, str) and value.endswith(".xml"))
        references = [env.id] if ":" in env.id else []
        if env.adapter is not None:
            references += [*env.adapter.wrappers, *([env.adapter.expert] if env.adapter.expert else [])]
        sources = (file for reference in references for file in source_files(reference))
        return (*super().warm_start_files, *scenes, *sources)

    def films_after(self, index: int) -> bool:
        """Say whether a video is made after that evaluation: before and after training."""
        return self.evaluation.video and index in (0, self.iterations)

    def summarize(self, records: Records) -> dict[str, Any]:
        """Return success rates before and after, on goals of the evaluation split; of several tasks each one's too."""
        return success_summary(records, self.iterations) | task_summary(records, self.iterations, self.env.tasks)

    @staticmethod
    def summary_line(summary: Mapping[str, Any]) -> str:
        """Return the success rates in a line."""
        return success_line(summary)
