"""The configuration that all kinds of jobs share.

Hydra composes YAML files into a plain mapping (:mod:`embodyflow.config.composition.compose`). These models validate it
once; all other code receives models and never the mapping. Validation refuses unknown keys, wrong types and values out
of range, and names the key.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field, SerializeAsAny, field_validator, model_validator
from pydantic_core import PydanticCustomError

from embodyflow.algorithms.algorithm_config import AlgorithmConfig
from embodyflow.config.base import Config, LearningRate, Place, PositiveInt, RunName
from embodyflow.config.branch import BranchConfig
from embodyflow.config.cluster import ClusterConfig, TrackingConfig
from embodyflow.config.health_checks import check_health, rolling_back
from embodyflow.config.pipeline import FilterConfig, PipelineConfig
from embodyflow.config.trainer import CriticConfig, TrainerConfig, check_tolerance
from embodyflow.errors import ConfigError
from embodyflow.health.settings import HealthConfig
from embodyflow.policies.policy_config import PolicyConfig
from embodyflow.policies.policy_registry import check_features, check_training, validate_policy
from embodyflow.references import source_files
from embodyflow.rewards.progress.classifier_config import ClassifierConfig
from embodyflow.rewards.progress.progress_config import ProgressConfig

MAX_GROUPS_IN_FLIGHT = 32
"""Most groups that a rollout worker can play at a time: it has a thread for each."""

Records = Sequence[Mapping[str, Any]]
"""Lines of a run's ``metrics.jsonl``."""


class RolloutConfig(Config):
    """How rollout workers collect rows.

    Attributes:
        num_workers: Rollout processes, usually one per core; with ``autoscale`` those that the run starts with.
        temperature: Temperature of the distribution that actions and tokens are sampled from.
        max_staleness: How many versions rollouts may lag behind the trainer. 0 is the synchronous algorithm; with
            k > 0 rollout workers collect rows for up to k iterations ahead while the trainer trains. The run then
            keeps k more checkpoints, and the buffers k more versions of the weights.
        mode: Unit of work of rollout workers: whole ``iterations``, or ``streaming``: group after group, as they have
            room.
        order: Groups of an iteration in streaming: those that are its own ``by_index``, or the ``first_ready``.
        too_old: Treatment of a group that would be staler than ``max_staleness``, with ``order=first_ready``: ``drop``
            it and draw it again, or ``wait`` for it before its last iteration is trained.
        groups_in_flight: Most groups that a worker plays at a time in streaming; with robots, fewer if it has fewer
            environments.
    """

    num_workers: PositiveInt
    temperature: Annotated[float, Field(gt=0, le=1000)]
    max_staleness: Annotated[int, Field(ge=0, strict=True)] = 0
    mode: Literal["iterations", "streaming"] = "iterations"
    order: Literal["by_index", "first_ready"] = "by_index"
    too_old: Literal["drop", "wait"] = "drop"
    groups_in_flight: Annotated[int, Field(ge=1, le=MAX_GROUPS_IN_FLIGHT, strict=True)] = MAX_GROUPS_IN_FLIGHT

    @model_validator(mode="after")
    def _check_mode(self) -> "RolloutConfig":
        if self.mode == "iterations":
            for key in ("order", "groups_in_flight"):
                if (value := getattr(self, key)) != type(self).model_fields[key].default:
                    raise ValueError(f"{key}={value}: only used with mode=streaming")
        if self.too_old != "drop" and self.order != "first_ready":
            raise ValueError(f"too_old={self.too_old}: only used with mode=streaming and order=first_ready")
        return self

    @property
    def fewest_workers(self) -> int:
        """Number of rollout workers that are there in every iteration."""
        return self.num_workers

    @property
    def most_workers(self) -> int:
        """Number of rollout workers that an iteration may have."""
        return self.num_workers

    def check_published(self) -> None:
        """Check the other keys that ``interrupt.when=published`` needs."""
        given = "interrupt.when=published"
        if self.mode != "streaming" or self.order != "first_ready":
            raise ValueError(
                f"{given}: allowed with mode=streaming and order=first_ready, not mode={self.mode} and "
                f"order={self.order}, because timing decides when weights change"
            )
        if self.max_staleness == 0:
            raise ValueError(f"{given}: needs max_staleness of at least 1, so that a row may outlive its first version")

    @property
    def most_groups_in_flight(self) -> int:
        """Most groups that a worker plays at a time in streaming, whatever limits them."""
        return self.groups_in_flight

    @property
    def swaps_weights(self) -> bool:
        """Whether a row that is being sampled goes on with newer weights at token indices."""
        return False

    @property
    def swaps_when_published(self) -> bool:
        """Whether a row that is being sampled goes on with newer weights as soon as these are published."""
        return False

    @property
    def keeps_cache(self) -> bool:
        """Whether newer weights go on with keys and values of older ones, which no clean pass has."""
        return False


class WarmStartUntilConfig(Config):
    """Quality that ends a warm start.

    Attributes:
        success: Sampled success rate on held-out goals or prompts at which the warm start ends.
        max_steps: Most optimizer steps. At this bound the warm start ends with a warning, whatever its quality.
        every: Number of optimizer steps between two measurements.
        num_held_out: Number of held-out goals per task, or of held-out prompts, each played once. They are the last
            ones of the split ``demo``; no demonstration uses them.
    """

    success: Annotated[float, Field(gt=0, le=1)]
    max_steps: PositiveInt
    every: PositiveInt = 20
    num_held_out: PositiveInt = 64


class WarmStartConfig(Config):
    """Supervised fine-tuning on demonstrations before reinforcement learning.

    Attributes:
        samples: Class ``module:Class`` that turns demonstrations into training samples, see
            :mod:`embodyflow.training.imitation.imitation`.
        num_demos: Number of demonstrations; in embodied jobs, the number per task.
        steps: Optimizer steps; with ``until``, those before the first measurement.
        until: Quality at which the warm start ends; ``null`` ends it after ``steps`` steps.
        batch_size: Samples per optimizer step.
        learning_rate: Learning rate of AdamW.
    """

    samples: ClassVar[str]

    num_demos: PositiveInt
    steps: PositiveInt
    until: WarmStartUntilConfig | None = None
    batch_size: PositiveInt
    learning_rate: LearningRate

    @model_validator(mode="after")
    def _check_bounds(self) -> "WarmStartConfig":
        if self.until is not None and self.until.max_steps < self.steps:
            raise ValueError(
                f"until.max_steps={self.until.max_steps}: must be at least steps={self.steps}, the steps before the "
                "first measurement"
            )
        return self

    @property
    def num_held_out(self) -> int:
        """Number of goals or prompts at the end of the split ``demo`` that no demonstration uses."""
        return 0 if self.until is None else self.until.num_held_out


class EvaluationConfig(Config):
    """When the policy is evaluated.

    Attributes:
        every: Number of iterations between evaluations; ``null`` means only before and after training.
        beside: Evaluate a frozen copy of the weights while training goes on. The results are bit-identical.
        own_worker: Evaluate in a worker process of its own; needs ``beside``. Without it rollout workers evaluate
            between their rollouts.
        rows_per_part: Episodes or responses that a rollout worker evaluates before a rollout that waits gets its turn;
            needs ``beside``.
    """

    every: PositiveInt | None = None
    beside: bool = False
    own_worker: bool = False
    rows_per_part: PositiveInt = 16

    @model_validator(mode="after")
    def _check_beside(self) -> "EvaluationConfig":
        default = type(self).model_fields["rows_per_part"].default
        if self.own_worker and not self.beside:
            raise ValueError("own_worker=true: only used with beside=true")
        if self.rows_per_part != default and (self.own_worker or not self.beside):
            raise ValueError(f"rows_per_part={self.rows_per_part}: only used with beside=true and own_worker=false")
        return self


class GroupShape(NamedTuple):
    """A worker group.

    Attributes:
        engine: Class ``module:Class`` of the engine that each rank holds.
        num_ranks: Number of ranks.
        ranks_per_copy: Number of consecutive ranks that share one copy of the models and receive the same rows.
    """

    engine: str
    num_ranks: int
    ranks_per_copy: int = 1


class RunConfig(Config):
    """The configuration of a run. Each kind of job is a subclass in its own file and a name in ``jobs.py``.

    Attributes:
        kind: Value of ``job`` that selects this class.
        rollout_engine, trainer_engine: Classes ``module:Class`` of the engines that the ranks of the two groups hold.
        group_engine: Class ``module:Class`` of the engines that play single groups in streaming; ``None`` if the job
            has none.
        interrupted_group_engine: The same for groups whose rows go on with newer weights when these are published.
        pipelines: Built-in pipelines that accept the job's rows.
        check: Function ``module:function`` that takes the configuration and refuses what this machine cannot run.
        resume_check: Function ``module:function`` that takes the configuration of a run to resume and refuses
            environments that have changed; ``None`` if there is nothing to check.
        evaluator: Coroutine function ``module:function`` that evaluates the policy after an iteration, from a run, the
            index of the iteration and the :class:`~embodyflow.orchestration.evaluation.lanes.Lane` that plays the
            episodes to the metrics.
        policy_evaluator: Coroutine function ``module:function`` of ``flows.evaluate``, from a run whose workers have
            loaded the policy to the job's part of ``evaluation.json``; ``None`` if the job has no such evaluation.
        splits_models: Whether the trainer can split the matrices of a model over ranks.
        has_turns: Whether rows may have several turns and agents, for ``algorithm.turn_discount``,
            ``algorithm.per_turn`` and ``algorithm.per_agent``.
        records_observations: Whether the run records the policy's observations of each task, so that an evaluation
            can compare its own.
        headline: Metrics of an iteration that the terminal and the logs show, at most three, with their labels.
        pipeline_tag: Kind of model on the Hugging Face hub, for the model card.
        warm_start_keys: Keys that warm-started weights depend on, besides the numbers of ranks.
        warm_start_until_keys: Further keys that they depend on if a measured quality ends the warm start.
        experiment: Experiment that the configuration starts from, a file in ``configs/experiment``.
        seed: Seed of every random draw.
        iterations: Iterations of reinforcement learning.
        run_id: Name of the run's folder; ``null`` means a name made of experiment, seed and time.
        run_root: Folder that holds the runs' folders.
        job: Kind of job.
        flow: Training flow that runs the algorithm.
        algorithm_name: Algorithm that the configuration starts from, a file in ``configs/algorithm``.
        branch: Run whose weights or checkpoint the run begins with; ``null`` begins it afresh.
        progress: How to measure the progress of failed episodes, for the pipeline ``embodied_srpo``; ``null`` if
            unused.
        classifier: How to classify the success of episodes, for the pipeline ``embodied_classifier``; ``null`` if
            unused.
    """

    kind: ClassVar[str]
    rollout_engine: ClassVar[str]
    trainer_engine: ClassVar[str] = "embodyflow.training.fsdp_trainer:FSDPTrainer"
    group_engine: ClassVar[str | None] = None
    interrupted_group_engine: ClassVar[str | None] = None
    pipelines: ClassVar[tuple[str, ...]]
    check: ClassVar[str]
    resume_check: ClassVar[str | None] = None
    evaluator: ClassVar[str] = "embodyflow.orchestration.evaluation.evaluation:evaluate"
    policy_evaluator: ClassVar[str | None] = None
    splits_models: ClassVar[bool] = False
    has_turns: ClassVar[bool] = False
    records_observations: ClassVar[bool] = False
    headline: ClassVar[Mapping[str, str]] = {
        "rollout/success_rate": "success",
        "rollout/reward": "return",
        "policy/entropy": "entropy",
    }
    pipeline_tag: ClassVar[str] = "reinforcement-learning"
    warm_start_keys: ClassVar[frozenset[str]] = frozenset()
    warm_start_until_keys: ClassVar[frozenset[str]] = frozenset({"rollout", "reward"})

    experiment: RunName
    flow: RunName
    algorithm_name: RunName | None = None
    branch: BranchConfig | None = None
    seed: Annotated[int, Field(ge=0, lt=2**31, strict=True)]
    iterations: PositiveInt
    run_id: RunName | None = None
    run_root: Place = "runs"
    job: str
    pipeline: PipelineConfig
    algorithm: AlgorithmConfig
    filter: FilterConfig = FilterConfig()
    progress: ProgressConfig | None = None
    classifier: ClassifierConfig | None = None
    policy: SerializeAsAny[PolicyConfig]
    rollout: RolloutConfig
    trainer: TrainerConfig
    critic: CriticConfig = CriticConfig()
    warm_start: WarmStartConfig | None
    evaluation: EvaluationConfig | None
    cluster: ClusterConfig
    tracking: TrackingConfig = TrackingConfig()
    health: HealthConfig = HealthConfig()

    @field_validator("policy", mode="before")
    @classmethod
    def _policy_by_name(cls, value: Any) -> Any:
        kind: Any = cls.model_fields["policy"].annotation
        try:
            return validate_policy(value, kind) if isinstance(value, Mapping) else value
        except ConfigError as error:  # names its key itself
            raise PydanticCustomError("config_error", "{message}", {"message": str(error)}) from error

    @model_validator(mode="after")
    def _policy_can_learn(self) -> "RunConfig":
        has_own_critic = self.algorithm.needs_critic and self.critic.features == "own"
        critic = f"algorithm.advantage={self.algorithm.advantage}" if has_own_critic else None
        check_training(self.policy, needs_critic=critic, has_demonstrations=self.warm_start is not None)
        if self.critic.features == "policy":
            check_features(self.policy)
        return self

    @model_validator(mode="after")
    def _check_row_counts(self) -> "RunConfig":
        rows = self.full_batch
        if rows < self.trainer.num_parts * self.trainer.num_minibatches:
            raise ValueError(
                "trainer.num_ranks / trainer.tensor_parallel_size × trainer.num_minibatches must not exceed the "
                f"{rows} rows of an iteration"
            )
        limit, (longest, what) = self.trainer.micro_batch_tokens, self.longest_row
        if limit is not None and limit < longest:
            raise ValueError(f"trainer.micro_batch_tokens={limit}: must be at least {longest}, the tokens of {what}")
        return self

    @model_validator(mode="after")
    def _check_profile(self) -> "RunConfig":
        trainer = self.trainer
        if (last := max(trainer.profile.iterations, default=0)) > self.iterations:
            raise ValueError(
                f"trainer.profile.iterations: has {last}; allowed are 1 to {self.iterations}, the run's iterations"
            )
        if (rank := max(trainer.profile.ranks)) >= trainer.num_ranks:
            raise ValueError(
                f"trainer.profile.ranks: has {rank}; allowed are 0 to {trainer.num_ranks - 1}, the ranks of "
                f"trainer.num_ranks={trainer.num_ranks}"
            )
        return self

    @model_validator(mode="after")
    def _check_tensor_parallel(self) -> "RunConfig":
        if self.trainer.tensor_parallel_size > 1 and not self.splits_models:
            raise ValueError(
                f"trainer.tensor_parallel_size={self.trainer.tensor_parallel_size}: allowed is 1 with "
                f"policy.name={self.policy.name}; only language models (causal_lm) can be split"
            )
        return self

    @model_validator(mode="after")
    def _check_parity(self) -> "RunConfig":
        check_tolerance("trainer.parity_tolerance", self.trainer.parity_tolerance, self.precisions)
        return self

    @model_validator(mode="after")
    def _check_stale_rows(self) -> "RunConfig":
        self.check_stale_rows()
        return self

    def check_stale_rows(self) -> None:
        """Refuse stale rows whose log-probs would be those of newer weights."""
        staleness = self.rollout.max_staleness
        if staleness and self.algorithm.old_log_probs == "recomputed":
            raise ValueError(
                f"algorithm.old_log_probs=recomputed: needs rollout.max_staleness=0, not {staleness}; allowed with "
                "stale rows are proximal or interpolated (the decoupled objective) and recorded"
            )

    @model_validator(mode="after")
    def _check_compile(self) -> "RunConfig":
        if self.trainer.compile and (line := self.what_prevents_tracing()) is not None:
            raise ValueError(line)
        return self

    def what_prevents_tracing(self) -> str | None:
        """Return one line with what prevents optimizer steps that are traced to a graph; here every job does."""
        return (
            f"trainer.compile=true: allowed is false with job={self.kind}; job=control compiles, and job=embodied "
            "off-policy"
        )

    @property
    def traces_steps(self) -> bool:
        """Whether the trainer traces each optimizer step to a graph, which computes the same in less time."""
        return self.what_prevents_tracing() is None

    @model_validator(mode="after")
    def _check_commits(self) -> "RunConfig":
        given = f"trainer.iterations_per_commit={(number := self.trainer.iterations_per_commit)}"
        if number > 1 and self.streams:
            raise ValueError(f"{given}: allowed is 1 with rollout.mode=streaming")
        if number > 1 and self.rollout.max_staleness:
            raise ValueError(
                f"{given}: allowed is 1 with rollout.max_staleness={self.rollout.max_staleness}, because a resumed run "
                "needs the checkpoints of all versions that rollouts act with"
            )
        return self

    @model_validator(mode="after")
    def _check_streaming(self) -> "RunConfig":
        if self.streams and self.group_engine is None:
            raise ValueError(
                f"rollout.mode=streaming: allowed with job=embodied, job=language and job=agent, not job={self.kind}"
            )
        if self.streams and self.rollout.swaps_weights:
            raise ValueError("rollout.interrupt.every: allowed is null with rollout.mode=streaming")
        return self

    @model_validator(mode="after")
    def _check_entropies(self) -> "RunConfig":
        if self.algorithm.top_entropy_fraction < 1 and not self.policy.entropy_varies:
            raise ValueError(
                f"algorithm.top_entropy_fraction={self.algorithm.top_entropy_fraction:g}: allowed is 1 with "
                f"policy.name={self.policy.name}, whose entropy is the same in every state"
            )
        return self

    @model_validator(mode="after")
    def _check_reference(self) -> "RunConfig":
        if self.algorithm.kl.refresh_every is not None and self.trainer.lora is not None:
            raise ValueError(
                f"algorithm.kl.refresh_every={self.algorithm.kl.refresh_every}: must be null with trainer.lora, whose "
                "reference is the policy without adapters"
            )
        return self

    @model_validator(mode="after")
    def _check_turns(self) -> "RunConfig":
        if self.algorithm.reads_turns and not self.has_turns:
            raise ValueError(
                f"algorithm.{self.algorithm.turn_setting}: only agent jobs have turns, and job is {self.kind}"
            )
        if self.algorithm.per_agent and not self.has_turns:
            raise ValueError(f"algorithm.per_agent=true: only agent jobs have agents, and job is {self.kind}")
        return self

    @model_validator(mode="after")
    def _check_health(self) -> "RunConfig":
        check_health(self.health, self.policy, self)
        action = self.health.reward_hacking.action
        if action is not None and self.has_evaluations_beside:
            raise ValueError(
                f"health.reward_hacking.action={action}: allowed is null with evaluation.beside=true, because timing "
                "decides in which iteration an evaluation ends"
            )
        return self

    @property
    def agents(self) -> tuple[str, ...]:
        """Names of the agents that write the rows; empty for a single one without a name."""
        return ()

    @property
    def has_own_weights(self) -> bool:
        """Whether each of the agents has weights of its own."""
        return False

    @property
    def precisions(self) -> dict[str, str]:
        """Precisions that log-probs are computed in, by configuration key."""
        return {"trainer.precision": self.trainer.precision}

    @property
    @abstractmethod
    def rows_per_iteration(self) -> int:
        """Rows that one iteration collects."""

    @property
    def full_batch(self) -> int:
        """Rows that one iteration trains on if no filter drops any."""
        return self.rows_per_iteration

    def minibatch_fraction(self, num_rows: int) -> float:
        """Return the size of a mini-batch of ``num_rows`` kept rows relative to a full one; 1 if none are dropped."""
        return 1.0

    @property
    @abstractmethod
    def longest_row(self) -> tuple[int, str]:
        """Tokens of the longest possible row, and a description of that row."""

    @property
    @abstractmethod
    def task_name(self) -> str:
        """Environment and tasks, or data, in a few words for a model card."""

    @property
    @abstractmethod
    def row_capacity(self) -> int:
        """Most tokens with a log-prob in a training row."""

    @property
    def groups(self) -> dict[str, GroupShape]:
        """Worker groups by name, as the run starts."""
        trainer = self.trainer
        shapes = {
            "rollout": GroupShape(self.rollout_engine, self.rollout.num_workers),
            "trainer": GroupShape(self.trainer_engine, trainer.num_ranks, trainer.tensor_parallel_size),
        }
        if self.evaluation is not None and self.evaluation.own_worker:
            shapes["evaluation"] = GroupShape(self.rollout_engine, 1)
        return shapes

    @property
    def largest_groups(self) -> dict[str, GroupShape]:
        """Worker groups by name, with as many rollout workers as an iteration may have."""
        shapes = self.groups
        return shapes | {"rollout": shapes["rollout"]._replace(num_ranks=self.rollout.most_workers)}

    @property
    def begins_at(self) -> int:
        """Iteration after which the run begins: 0 unless it branches off another one with everything."""
        branch = self.branch
        return (branch.iteration or 0) if branch is not None and branch.take == "everything" else 0

    @property
    def streams(self) -> bool:
        """True if rollout workers play group after group."""
        return self.rollout.mode == "streaming"

    @property
    def run_dir(self) -> Path:
        """Folder of the run.

        Raises:
            ValueError: ``run_id`` has not been chosen yet.
        """
        if self.run_id is None:
            raise ValueError("run_id is not set")
        return Path(self.run_root) / self.run_id

    @property
    def kept_checkpoints(self) -> int:
        """Number of newest checkpoints that the run keeps.

        Resuming from any of the newest ``trainer.keep_checkpoints`` also needs the older weights that rollouts in
        flight act with. A roll-back needs those that it returns to, also if each goes further back than the last one.
        """
        back = self.health.roll_back
        returned = back.iterations * back.max_times if any(rolling_back(self.health)) else 0
        return self.trainer.keep_checkpoints + self.rollout.max_staleness + returned

    @property
    def repeatable_iterations(self) -> int:
        """Number of newest iterations that the run may have to repeat, from the oldest checkpoint that it keeps."""
        return self.kept_checkpoints * self.trainer.iterations_per_commit

    def commits_after(self, index: int) -> bool:
        """Return True if iteration ``index`` ends a commit; 0 is before the first."""
        is_due = index % self.trainer.iterations_per_commit == 0
        return is_due or index == self.iterations or self.evaluates_after(index)

    @property
    def kept_iterations(self) -> int:
        """Number of newest iterations whose episodes the run keeps."""
        return 0

    def evaluates_after(self, index: int) -> bool:
        """Return True if the policy is evaluated after iteration ``index``; 0 is before the first."""
        if self.evaluation is None:
            return False
        every = self.evaluation.every
        return index in (0, self.iterations) or (every is not None and index % every == 0)

    def evaluates_beside(self, index: int) -> bool:
        """Return True if the policy is evaluated after iteration ``index`` while training goes on."""
        return self.has_evaluations_beside and self.evaluates_after(index)

    @property
    def has_evaluations_beside(self) -> bool:
        """Whether evaluations run while training goes on."""
        return self.evaluation is not None and self.evaluation.beside

    def records_video_after(self, index: int) -> bool:
        """Return True if the evaluation after iteration ``index`` records a video."""
        return False

    def unrestorable(self) -> dict[str, str]:
        """Return the tasks whose episodes are not restored by their seed, each with the culprit and what differs.

        It is empty unless the configuration allows such tasks.
        """
        return {}

    def warm_start_facts(self) -> dict[str, Any]:
        """Return every part of the configuration that warm-started weights depend on, as JSON-able values."""
        layout = [self.rollout.num_workers, self.trainer.num_ranks, self.trainer.tensor_parallel_size]
        facts = {"layout": layout, "precision": self.trainer.precision}
        keys = set(self.warm_start_keys)
        if self.warm_start is not None and self.warm_start.until is not None:  # rollouts decide when it ends
            keys |= self.warm_start_until_keys
        return self.model_dump(mode="json", include=keys) | facts

    @property
    def warm_start_files(self) -> tuple[str, ...]:
        """Files and folders in the configuration that warm-started weights depend on.

        Some may be names on the Hugging Face hub.
        """
        named = (getattr(self.policy, key, None) for key in ("path", "tokenizer"))
        own = source_files(self.policy.name) if ":" in self.policy.name else ()
        return (*(name for name in named if name is not None), *own)

    @abstractmethod
    def summarize(self, records: Records) -> dict[str, Any]:
        """Return the results of learning for a finished run's summary."""

    @staticmethod
    @abstractmethod
    def summary_line(summary: Mapping[str, Any]) -> str:
        """Format the summary as the line that ends a run."""
