"""What every run is made of, whatever the kind of its job.

Hydra composes YAML into a plain mapping (:mod:`embodyflow.config.compose`); these models check it once, at the edge.
Below that, code receives models and never a mapping. Unknown keys, wrong types and values out of range are
refused with the key named.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import Field, SerializeAsAny, field_validator, model_validator
from pydantic_core import PydanticCustomError

from embodyflow.algorithms.algorithm_config import AlgorithmConfig
from embodyflow.config.base import Config, PositiveFloat, PositiveInt, RunName
from embodyflow.config.cluster import ClusterConfig, TrackingConfig
from embodyflow.config.pipeline import FilterConfig, PipelineConfig
from embodyflow.config.trainer import CriticConfig, TrainerConfig, check_tolerance
from embodyflow.errors import ConfigError
from embodyflow.policies.policy_config import PolicyConfig
from embodyflow.policies.policy_registry import check_training, validate_policy
from embodyflow.references import source_files
from embodyflow.rewards.progress.progress_config import ProgressConfig

Records = Sequence[Mapping[str, Any]]
"""The lines of a run's ``metrics.jsonl``."""


class RolloutConfig(Config):
    """How rows are gathered.

    Attributes:
        num_workers: rollout processes, by custom one per core.
        temperature: of the distribution that actions and tokens are sampled from.
        max_staleness: versions that the policy that acts lies behind the one that is trained. 0 is the synchronous
            algorithm; with k > 0 rollout workers gather rows for k iterations ahead while the trainer trains. So many
            more checkpoints are kept, and versions of the weights in the buffers.
    """

    num_workers: PositiveInt
    temperature: PositiveFloat
    max_staleness: Annotated[int, Field(ge=0, strict=True)] = 0


class WarmStartConfig(Config):
    """Supervised fine-tuning on demonstrations, before anything is learned by reinforcement.

    Attributes:
        samples: ``"module:Class"`` of what a trainer makes of demonstrations, see :mod:`embodyflow.training.imitation`.
        num_demos: demonstrations, of embodied jobs per task.
        steps, batch_size, learning_rate: of AdamW.
    """

    samples: ClassVar[str]

    num_demos: PositiveInt
    steps: PositiveInt
    batch_size: PositiveInt
    learning_rate: PositiveFloat


class EvaluationConfig(Config):
    """When the policy is tested.

    Attributes:
        every: evaluate after every so many iterations; ``null`` means before and after only.
    """

    every: PositiveInt | None = None


class GroupShape(NamedTuple):
    """A worker group.

    Attributes:
        engine: ``"module:Class"`` of what each rank holds.
        num_ranks: of them.
        ranks_per_copy: ranks in a row that hold one copy of the models together, and get the same rows.
    """

    engine: str
    num_ranks: int
    ranks_per_copy: int = 1


class RunConfig(Config):
    """Everything a run is made of. A kind of job is a subclass in a file of its own and a line in ``registry.py``.

    Attributes:
        kind: what ``job`` says in the YAML.
        rollout_engine, trainer_engine: ``"module:Class"`` of what the ranks of the two groups hold.
        pipelines: the built-in pipelines that fit the job's rows.
        check: ``"module:function"`` that is given the configuration and refuses what this machine lacks.
        splits_models: its trainer can split the matrices of a model over ranks.
        notes_observations: the run notes what its policy is shown of each task, so that an evaluation can compare.
        warm_start_reads: the keys that warm-started weights depend on, beside the numbers of ranks.
        experiment: that the configuration began with, a file in ``configs/experiment``.
        seed: of every random draw.
        iterations: of reinforcement learning.
        run_id: name of the run's folder; ``null`` is made of experiment, seed and time.
        run_root: folder of the runs' folders.
        job: the kind of job.
        flow: Training flow that runs the algorithm.
        algorithm_name: Algorithm that the configuration began with, a file in ``configs/algorithm``.
        progress: how the progress of failures is measured, for the pipeline ``embodied_srpo``.
    """

    kind: ClassVar[str]
    rollout_engine: ClassVar[str]
    trainer_engine: ClassVar[str] = "embodyflow.training.fsdp_trainer:FSDPTrainer"
    pipelines: ClassVar[tuple[str, ...]]
    check: ClassVar[str]
    splits_models: ClassVar[bool] = False
    notes_observations: ClassVar[bool] = False
    warm_start_reads: ClassVar[frozenset[str]] = frozenset()

    experiment: RunName
    flow: RunName
    algorithm_name: RunName | None = None
    seed: Annotated[int, Field(ge=0, lt=2**31, strict=True)]
    iterations: PositiveInt
    run_id: RunName | None = None
    run_root: str = "runs"
    job: str
    pipeline: PipelineConfig
    algorithm: AlgorithmConfig
    filter: FilterConfig = FilterConfig()
    progress: ProgressConfig | None = None
    policy: SerializeAsAny[PolicyConfig]
    rollout: RolloutConfig
    trainer: TrainerConfig
    critic: CriticConfig = CriticConfig()
    warm_start: WarmStartConfig | None
    evaluation: EvaluationConfig | None
    cluster: ClusterConfig
    tracking: TrackingConfig = TrackingConfig()

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
        critic = f"algorithm.advantage={self.algorithm.advantage}" if self.algorithm.needs_critic else None
        check_training(self.policy, needs_critic=critic, has_demonstrations=self.warm_start is not None)
        return self

    @model_validator(mode="after")
    def _rows_fit(self) -> "RunConfig":
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
    def _model_can_be_split(self) -> "RunConfig":
        if self.trainer.tensor_parallel_size > 1 and not self.splits_models:
            raise ValueError(
                f"trainer.tensor_parallel_size={self.trainer.tensor_parallel_size}: allowed is 1 with "
                f"policy.name={self.policy.name}; only language models (causal_lm) can be split"
            )
        return self

    @model_validator(mode="after")
    def _parity_can_hold(self) -> "RunConfig":
        check_tolerance("trainer.parity_tolerance", self.trainer.parity_tolerance, self.precisions)
        return self

    @model_validator(mode="after")
    def _stale_rows_are_weighed(self) -> "RunConfig":
        staleness = self.rollout.max_staleness
        if staleness and self.algorithm.old_log_probs == "recomputed":
            raise ValueError(
                f"algorithm.old_log_probs=recomputed: all rows are of earlier versions with rollout.max_staleness="
                f"{staleness}; allowed are proximal (the decoupled objective) and recorded"
            )
        return self

    @property
    def precisions(self) -> dict[str, str]:
        """In what log-probs are computed, by the keys that say so."""
        return {"trainer.precision": self.trainer.precision}

    @property
    @abstractmethod
    def rows_per_iteration(self) -> int:
        """Rows gathered in one iteration."""

    @property
    def full_batch(self) -> int:
        """Rows trained on in one iteration when no filter drops any."""
        return self.rows_per_iteration

    def share_left(self, num_rows: int) -> float:
        """Return how much of a full mini-batch one is when that many rows are left; 1 where rows are not dropped."""
        return 1.0

    @property
    @abstractmethod
    def longest_row(self) -> tuple[int, str]:
        """Tokens that the longest possible row has for the policy, and what row that is."""

    @property
    @abstractmethod
    def row_capacity(self) -> int:
        """Tokens with a log-prob that a row which is trained on can hold."""

    @property
    def groups(self) -> dict[str, GroupShape]:
        """Worker groups by name."""
        trainer = self.trainer
        return {
            "rollout": GroupShape(self.rollout_engine, self.rollout.num_workers),
            "trainer": GroupShape(self.trainer_engine, trainer.num_ranks, trainer.tensor_parallel_size),
        }

    @property
    def run_dir(self) -> Path:
        """The run's folder.

        Raises:
            ValueError: ``run_id`` has not been chosen yet.
        """
        if self.run_id is None:
            raise ValueError("run_id is not set")
        return Path(self.run_root) / self.run_id

    @property
    def kept_checkpoints(self) -> int:
        """How many of the newest checkpoints are kept: the run must be able to go on from as many as it was told to.

        To do so it needs the weights that rollouts under way act with.
        """
        return self.trainer.keep_checkpoints + self.rollout.max_staleness

    @property
    def kept_iterations(self) -> int:
        """Of how many iterations, the newest, the episodes are kept."""
        return 0

    def evaluates_after(self, index: int) -> bool:
        """Say whether the policy is evaluated after iteration ``index``, 0 being before the first."""
        if self.evaluation is None:
            return False
        every = self.evaluation.every
        return index in (0, self.iterations) or (every is not None and index % every == 0)

    def films_after(self, index: int) -> bool:
        """Say whether a video is made after that evaluation."""
        return False

    def warm_start_facts(self) -> dict[str, Any]:
        """Return all of the configuration that warm-started weights depend on, JSON-able."""
        layout = [self.rollout.num_workers, self.trainer.num_ranks, self.trainer.tensor_parallel_size]
        facts = {"layout": layout, "precision": self.trainer.precision}
        return self.model_dump(mode="json", include=set(self.warm_start_reads)) | facts

    @property
    def warm_start_files(self) -> tuple[str, ...]:
        """Return what of the configuration names files and folders that warm-started weights are made from.

        A name of another kind, such as one on the hub, may be among them.
        """
        named = (getattr(self.policy, key, None) for key in ("path", "tokenizer"))
        own = source_files(self.policy.name) if ":" in self.policy.name else ()
        return (*(name for name in named if name is not None), *own)

    @abstractmethod
    def summarize(self, records: Records) -> dict[str, Any]:
        """Return what a finished run's summary says of its learning."""

    @staticmethod
    @abstractmethod
    def summary_line(summary: Mapping[str, Any]) -> str:
        """Return the line a run ends with."""
