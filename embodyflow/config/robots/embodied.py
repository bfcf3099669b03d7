"""Embodied jobs: a policy that emits action tokens plays whole episodes and learns from sparse success."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializeAsAny, model_validator

from embodyflow.algorithms.algorithm_registry import LOSSES
from embodyflow.config.base import Config, Fraction, PositiveInt
from embodyflow.config.grouped import GroupedConfig, GroupRolloutConfig
from embodyflow.config.robots.dagger import DaggerConfig, check_dagger
from embodyflow.config.robots.environment import EnvConfig, SteppingConfig, check_memory_limit, unrestorable_tasks
from embodyflow.config.robots.off_policy import LearnerConfig, SteeringConfig, check_off_policy, check_steering
from embodyflow.config.robots.traced_steps import what_prevents_compiled_updates
from embodyflow.config.robots.warm_start import ExpertWarmStartConfig
from embodyflow.config.run import EvaluationConfig, GroupShape, Records
from embodyflow.config.summary import success_line, success_summary, task_summary
from embodyflow.policies.embodied.act.configuration_act import ACTConfig
from embodyflow.policies.embodied.flow_vla.configuration_flow_vla import FlowVLAConfig
from embodyflow.policies.policy_config import EmbodiedPolicyConfig
from embodyflow.policies.policy_registry import check_training
from embodyflow.policies.pretrained.configuration import WeightsConfig
from embodyflow.references import source_files


class EpisodeInterruptConfig(Config):
    """When an episode goes on with newer weights; needs ``rollout.max_staleness``.

    Attributes:
        when: ``published`` lets a version decide from the next decision on as soon as there is one; this needs
            ``rollout.mode=streaming`` and ``rollout.order=first_ready``, whose record names the decisions. ``null``
            plays an episode with one version.
    """

    when: Literal["published"] | None = None


class EpisodeRolloutConfig(SteppingConfig, GroupRolloutConfig):
    """How rollout workers collect episodes. Episodes of a group share their initial state.

    Attributes:
        interrupt: When an episode goes on with newer weights.
        chunk_correlation: Correlation of the sampling noise between the actions of a chunk: 0 samples each token
            independently, 1 gives all actions the same noise. See
            :func:`~embodyflow.rollouts.embodied.action_noise.chunk_uniforms`.
        keep_episodes: Number of newest iterations whose episodes, without images, stay in the run's folder.
        pipelined: Step half of the environments while the policy decides for the other half; needs ``env_processes``.
            Results are bit-identical. ``false`` is faster if a decision for half of the environments takes as long as
            one for all, and longer than a chunk of steps. In streaming the environments of each process take their own
            turns.
    """

    interrupt: EpisodeInterruptConfig = EpisodeInterruptConfig()
    chunk_correlation: Fraction = 0.0
    pipelined: bool = True
    keep_episodes: Annotated[int, Field(ge=0, strict=True)] = 20

    @model_validator(mode="after")
    def _check_streaming(self) -> "EpisodeRolloutConfig":
        if self.mode == "iterations":
            return self
        if self.envs_per_worker < self.group_size:
            raise ValueError(
                f"envs_per_worker={self.envs_per_worker}: must be at least group_size={self.group_size} with "
                "mode=streaming, where a group plays in environments of its own"
            )
        if 0 < self.env_processes < self.groups_with_environments:
            raise ValueError(
                f"env_processes={self.env_processes}: allowed with mode=streaming are 0 and at least "
                f"{self.groups_with_environments}, one for each group in flight; fewer groups are in flight with a "
                "smaller groups_in_flight"
            )
        if not self.pipelined:
            raise ValueError("pipelined=false: only used with mode=iterations")
        return self

    @model_validator(mode="after")
    def _check_interrupt(self) -> "EpisodeRolloutConfig":
        if self.swaps_when_published:
            self.check_published()
        return self

    @property
    def swaps_when_published(self) -> bool:
        """Whether an episode that is being played goes on with newer weights as soon as these are published."""
        return self.interrupt.when == "published"

    @property
    def groups_with_environments(self) -> int:
        """Most groups that have an environment for each of their episodes at a time in streaming."""
        return min(self.groups_in_flight, self.envs_per_worker // self.group_size)

    @property
    def environments_of_part(self) -> int:
        """Environments that take their turns together in streaming: those of a process, or of a group without any."""
        num_parts = max(self.env_processes // self.groups_with_environments, 1)
        return -(-self.group_size // num_parts)

    @property
    def most_groups_in_flight(self) -> int:
        """Most groups that a worker plays at a time in streaming.

        If the episodes of a group do not take their turns together, there are half as many groups again. Their episodes
        begin in the environments of those that end early.
        """
        groups = self.groups_with_environments
        more = -(-groups // 2) if self.environments_of_part < self.group_size else 0
        return min(self.groups_in_flight, groups + more)


class GoalEvaluationConfig(EvaluationConfig):
    """When the policy is evaluated, how, and on how many goals.

    Attributes:
        num_goals: Goals of the evaluation split per task. Each is played once greedily and once sampled.
        temporal_ensemble_coeff: m of ACT's temporal ensembling, LeRobot's key: the policy decides at every step, and
            the step executes the mean of all actions that were planned for it, by weights exp(-m·i) with i = 0 for the
            oldest plan. ``null`` executes whole chunks, as training does.
        video: Record one episode before and one after training if rendering is available.
    """

    num_goals: PositiveInt
    temporal_ensemble_coeff: Annotated[float, Field(ge=-1, le=1)] | None = None
    video: bool = True


DAGGER_TRAINER = "embodyflow.training.imitation.dagger_trainer:DaggerTrainer"
"""Engine of the trainer group with ``dagger``."""


class EmbodiedConfig(GroupedConfig):
    """The configuration of an embodied run.

    Attributes:
        off_policy: Training on replayed decisions and, but for DSRL, on the demonstrations of the warm start; ``null``
            trains on the rows of the iteration.
        dagger: Imitation of the scripted expert in the states that the policy visits; ``null`` for other algorithms.
    """

    kind: ClassVar[str] = "embodied"
    rollout_engine: ClassVar[str] = "embodyflow.rollouts.embodied.embodied_rollout:EmbodiedRollout"
    group_engine: ClassVar[str | None] = "embodyflow.rollouts.streaming.embodied_groups:EmbodiedGroups"
    interrupted_group_engine: ClassVar[str | None] = (
        "embodyflow.rollouts.streaming.interrupted_episodes:InterruptedEmbodiedGroups"
    )
    pipelines: ClassVar[tuple[str, ...]] = (
        *("grpo", "ppo", "ppo_joint", "embodied_grpo", "embodied_dapo", "embodied_srpo", "embodied_classifier"),
        *("remax", "grpo_kl_reward", "ppo_kl_reward", "embodied_sac", "dagger"),
    )
    check: ClassVar[str] = "embodyflow.simulation.make_env:check_embodied"
    resume_check: ClassVar[str | None] = "embodyflow.simulation.make_env:check_restorable"
    policy_evaluator: ClassVar[str | None] = "embodyflow.orchestration.evaluation.success_by_task:evaluate_tasks"
    records_observations: ClassVar[bool] = True
    headline: ClassVar[Mapping[str, str]] = {
        "rollout/success_rate": "success",
        "rollout/reward": "return",  # of the environment; the policy learns from success
        "groups/mixed_fraction": "mixed",
    }
    pipeline_tag: ClassVar[str] = "robotics"
    warm_start_keys: ClassVar[frozenset[str]] = frozenset({"seed", "env", "policy", "warm_start"})

    policy: SerializeAsAny[EmbodiedPolicyConfig]
    env: EnvConfig
    rollout: EpisodeRolloutConfig
    warm_start: ExpertWarmStartConfig | None
    evaluation: GoalEvaluationConfig
    off_policy: LearnerConfig | None = None
    dagger: DaggerConfig | None = None

    @model_validator(mode="after")
    def _check_memory_limit(self) -> "EmbodiedConfig":
        check_memory_limit(self.env, self.rollout.env_processes)
        return self

    @model_validator(mode="after")
    def _check_instructions(self) -> "EmbodiedConfig":
        if not self.policy.reads_instruction and len(self.env.tasks) > 1:
            raise ValueError(
                f"env.tasks: policy.name={self.policy.name} reads no instruction, so it learns one task; there are "
                f"{len(self.env.tasks)}"
            )
        return self

    @model_validator(mode="after")
    def _check_members(self) -> "EmbodiedConfig":
        found, members = self.policy.action_dims_by_member, self.env.members
        if not members:
            if found is not None:
                raise ValueError(f"policy.member_action_dims={list(found)}: must be null without env.members")
            return self
        if found is None:
            raise ValueError(
                "policy.member_action_dims: must be set with env.members; policy.action_dim=null sets it"
                if "member_action_dims" in type(self.policy).model_fields
                else f"policy.name={self.policy.name}: allowed with env.members is tiny_vla"
            )
        if len(found) != len(members):
            raise ValueError(
                f"policy.member_action_dims={list(found)}: must have a number for each of {len(members)} env.members"
            )
        if self.dagger is not None:
            raise ValueError("dagger: must be null with env.members")
        if self.warm_start is not None and self.warm_start.dataset is not None:
            raise ValueError("warm_start.dataset: must be null with env.members, whose experts demonstrate")
        return self

    @model_validator(mode="after")
    def _check_episode_sizes(self) -> "EmbodiedConfig":
        num_tasks, num_groups, turns = len(self.env.tasks), self.rollout.num_groups, len(self.env.turns)
        if not num_tasks:
            raise ValueError(f"env.tasks must list the instructions to follow with policy.name={self.policy.name}")
        if num_groups % turns:
            number = (
                f"{turns}, for equal shares of env.members"
                if self.env.members
                else f"the number of env.tasks ({turns})"
            )
            raise ValueError(f"rollout.num_groups={num_groups} must be a multiple of {number}")
        self._check_share("evaluation.num_goals", self.evaluation.num_goals * num_tasks)
        return self

    @model_validator(mode="after")
    def _check_ensemble(self) -> "EmbodiedConfig":
        coefficient = self.evaluation.temporal_ensemble_coeff
        if coefficient is None:
            return self
        key = f"evaluation.temporal_ensemble_coeff={coefficient:g}"
        if self.policy.choices is not None:
            raise ValueError(
                f"{key}: must be null with discrete actions, policy.num_choices={list(self.policy.choices)}"
            )
        loaded = (
            isinstance(self.policy, WeightsConfig) and self.policy.path is not None
        )  # may plan more than it executes
        if self.policy.chunk_size == 1 and not loaded:
            raise ValueError(f"{key}: needs policy.chunk_size of at least 2, so that several decisions plan a step")
        return self

    @model_validator(mode="after")
    def _check_off_policy(self) -> "EmbodiedConfig":
        if self.off_policy is None:
            if (learns_by := self.policy.off_policy) is not None:
                algorithm = "rlpd" if learns_by == "sac" else learns_by
                raise ValueError(f"policy.name={self.policy.name}: needs off_policy (algorithm={algorithm})")
            return self
        if self.streams:
            raise ValueError("rollout.mode=streaming: allowed with off_policy=null")
        if self.rollout.autoscale is not None:
            raise ValueError("rollout.autoscale: allowed with off_policy=null")
        check_off_policy(self.off_policy, self.policy, self.algorithm, self.trainer)
        check_training(self.policy, needs_critic="off_policy", has_demonstrations=True)
        if self.off_policy.demonstrations is not None:
            raise ValueError(
                "off_policy.demonstrations: must be null with job=embodied, whose demonstrations are those of "
                "warm_start"
            )
        if self.off_policy.hindsight is not None:
            raise ValueError(
                "off_policy.hindsight: must be null with job=embodied, whose transitions are chunks with the success "
                "of an episode as reward; allowed is a control job"
            )
        if isinstance(self.off_policy, SteeringConfig):
            correlation = self.rollout.chunk_correlation
            check_steering(self.policy, has_warm_start=self.warm_start is not None, chunk_correlation=correlation)
        elif self.warm_start is None:
            raise ValueError("warm_start=null: must be set with off_policy, which draws from its demonstrations")
        return self

    @model_validator(mode="after")
    def _check_dagger(self) -> "EmbodiedConfig":
        if self.dagger is None:
            return self
        if self.off_policy is not None:
            raise ValueError("off_policy: must be null with dagger, which imitates")
        check_dagger(self.dagger, self.algorithm, self.trainer)
        if self.streams:
            raise ValueError("rollout.mode=streaming: allowed with dagger=null")
        if self.rollout.keep_episodes:
            raise ValueError(
                f"rollout.keep_episodes={self.rollout.keep_episodes}: must be 0 with dagger, whose rows hold no chunks "
                "to replay"
            )
        if self.warm_start is None:
            raise ValueError("warm_start=null: must be set with dagger, whose data begin with its demonstrations")
        return self

    @model_validator(mode="after")
    def _require_progress(self) -> "EmbodiedConfig":
        if self.progress is None and self.pipeline.source() == {"name": "embodied_srpo"}:
            raise ValueError("progress=null: must be set with pipeline.name=embodied_srpo")
        return self

    @model_validator(mode="after")
    def _require_classifier(self) -> "EmbodiedConfig":
        if self.classifier is None and self.pipeline.source() == {"name": "embodied_classifier"}:
            raise ValueError("classifier=null: must be set with pipeline.name=embodied_classifier")
        return self

    @model_validator(mode="after")
    def _require_continuous_demonstrations(self) -> "EmbodiedConfig":
        if self.warm_start is not None and self.policy.choices is not None:
            raise ValueError(
                f"warm_start: must be null with discrete actions, policy.num_choices={list(self.policy.choices)}"
            )
        return self

    @model_validator(mode="after")
    def _check_dataset(self) -> "EmbodiedConfig":
        dataset = None if self.warm_start is None else self.warm_start.dataset
        if dataset is None:
            return self
        for key, known in (("columns", ["actions", *self.policy.observation_keys]), ("tasks", self.env.tasks)):
            if unknown := sorted(set(getattr(dataset, key)) - set(known)):
                raise ValueError(f"warm_start.dataset.{key}: {unknown[0]!r} is unknown; allowed are {', '.join(known)}")
        return self

    @model_validator(mode="after")
    def _check_advantages(self) -> "EmbodiedConfig":
        loss = self.algorithm.loss
        if self.policy.advantage_weights is not None and LOSSES.resolve(loss).per_row:
            raise ValueError(
                f"algorithm.loss={loss}: needs one advantage per row, and policy.name={self.policy.name} discounts it "
                "between denoising steps; allowed is policy.denoising_discount=1"
            )
        return self

    @model_validator(mode="after")
    def _require_statistics(self) -> "EmbodiedConfig":
        policy = self.policy
        if self.warm_start is not None or not isinstance(policy, (FlowVLAConfig, ACTConfig)) or policy.path is None:
            return self
        if policy.normalization == "demonstrations":
            raise ValueError(
                "policy.normalization=demonstrations: needs the demonstrations of a warm_start; allowed with "
                "warm_start=null is checkpoint"
            )
        return self

    def check_stale_rows(self) -> None:
        """Refuse stale rows, with DAgger in a line that names no key which it does not read.

        Off-policy training takes them: it learns from transitions of any policy and compares no log-probs.
        """
        if self.dagger is not None and self.rollout.max_staleness:
            raise ValueError(f"rollout.max_staleness={self.rollout.max_staleness}: must be 0 with dagger")
        if self.off_policy is None:
            super().check_stale_rows()

    def what_prevents_tracing(self) -> str | None:
        """Return one line with what prevents compiled steps; ``None`` if nothing does."""
        if self.off_policy is None:
            return super().what_prevents_tracing()
        return what_prevents_compiled_updates(self.policy, self.cluster.device)

    @property
    def compares_rows(self) -> bool:
        """True if advantages may compare the rows of a group; off-policy training and DAgger have no advantages."""
        return self.off_policy is None and self.dagger is None

    @property
    def groups(self) -> dict[str, GroupShape]:
        """Worker groups by name; off-policy training and DAgger have trainers of their own."""
        shapes = super().groups
        if self.off_policy is None and self.dagger is None:
            return shapes
        engine = DAGGER_TRAINER if self.off_policy is None else self.off_policy.episode_trainer
        return shapes | {"trainer": shapes["trainer"]._replace(engine=engine)}

    @property
    def task_name(self) -> str:
        """The environment's id and its tasks."""
        return f"{self.env.id}: {', '.join(self.env.tasks)}"

    @property
    def num_decisions(self) -> int:
        """Policy calls in a full-length episode; ``env.max_steps`` may cut the last one's chunk."""
        return -(-self.env.max_steps // self.policy.chunk_size)

    @property
    def longest_row(self) -> tuple[int, str]:
        """Action tokens of a full-length episode, and its description."""
        return self.row_capacity, f"an episode of env.max_steps={self.env.max_steps}"

    @property
    def row_capacity(self) -> int:
        """Action tokens of a full-length episode."""
        return self.num_decisions * self.policy.num_action_tokens

    @property
    def kept_iterations(self) -> int:
        """Number of newest iterations whose episodes the run keeps."""
        return self.rollout.keep_episodes

    def warm_start_facts(self) -> dict[str, Any]:
        """Return the facts that warm-started weights depend on; with DAgger their file has the demonstrations too."""
        return super().warm_start_facts() | ({} if self.dagger is None else {"kept": "demonstrations"})

    @property
    def warm_start_files(self) -> tuple[str, ...]:
        """Files of the policy, of scenes, of the modules of environment, wrappers and expert, and of the data set."""
        files = (file for part in self.env.parts.values() for file in _files_of(part))
        dataset = None if self.warm_start is None else self.warm_start.dataset
        return (*super().warm_start_files, *files, *([dataset.path] if dataset is not None else []))

    def records_video_after(self, index: int) -> bool:
        """Return True if the evaluation after iteration ``index`` records a video: before and after training."""
        return self.evaluation.video and index in (0, self.iterations)

    def unrestorable(self) -> dict[str, str]:
        """Return the tasks whose episodes are not restored by their seed; see :func:`unrestorable_tasks`."""
        return unrestorable_tasks(self.env, self.rollout)

    def summarize(self, records: Records) -> dict[str, Any]:
        """Return success rates on evaluation goals before and after training, also per task if there are several."""
        return success_summary(records, self.iterations) | task_summary(records, self.iterations, self.env.tasks)

    @staticmethod
    def summary_line(summary: Mapping[str, Any]) -> str:
        """Format the success rates as one line."""
        return success_line(summary)


def _files_of(env: EnvConfig) -> tuple[str, ...]:
    """Return the scenes of an environment and the modules of its id, wrappers and expert."""
    scenes = (value for value in env.kwargs.values() if isinstance(value, str) and value.endswith(".xml"))
    references = [env.id] if ":" in env.id else []
    if env.adapter is not None:
        references += [*env.adapter.wrappers, *([env.adapter.expert] if env.adapter.expert else [])]
    return (*scenes, *(file for reference in references for file in source_files(reference)))
