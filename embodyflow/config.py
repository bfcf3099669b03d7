"""The typed configuration of a run.

Hydra composes YAML into a plain mapping (:mod:`embodyflow.compose`); these models check it once, at the edge.
Below that, code receives models and never a mapping. Unknown keys, wrong types and values out of range are
refused with the key named.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from embodyflow.algorithms.configuration import AlgorithmConfig
from embodyflow.data.configuration import BufferConfig
from embodyflow.policies.configuration import PolicyConfig

PositiveInt = Annotated[int, Field(ge=1, strict=True)]
PositiveFloat = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
RunName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


class Config(BaseModel):
    """Base of all models here: frozen, and a key it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class PipelineConfig(Config):
    """Where the graph comes from.

    Attributes:
        name: a built-in pipeline, used when neither of the other two is set.
        custom_fn: ``"module:function"`` returning a ``TaskGraph``.
        yaml: path of a YAML graph.
        task_runs: what a Prefect task run stands for. ``node``: each can be retried and looked at by itself.
            ``iteration``: all nodes in one, as events with their times; for iterations of a second or less.
    """

    name: str
    custom_fn: str | None = None
    yaml: str | None = None
    task_runs: Literal["node", "iteration"] = "node"

    @model_validator(mode="after")
    def _one_source(self) -> "PipelineConfig":
        if self.custom_fn is not None and self.yaml is not None:
            raise ValueError("custom_fn and yaml must not both be set")
        return self

    def source(self) -> dict[str, str]:
        """Return the one setting that counts, by its name."""
        for key in ("custom_fn", "yaml"):
            value = getattr(self, key)
            if value is not None:
                return {key: value}
        return {"name": self.name}


class FilterConfig(Config):
    """Which groups ``embodied_sampling`` and ``dynamic_sampling`` keep.

    Attributes:
        min_success, max_success: bounds (inclusive) of a kept group's success rate.
        drop_uniform: drop groups whose members all had the same outcome; they carry no advantage.
        drop_truncated: drop groups in which an episode hit the step limit.
        num_groups: groups that ``dynamic_sampling`` fills an iteration with; ``null`` means ``rollout.num_groups``.
        max_rerolls: rounds of ``rollout.num_groups`` further groups that it plays for them at most.
    """

    min_success: Fraction = 0.0
    max_success: Fraction = 1.0
    drop_uniform: bool = True
    drop_truncated: bool = False
    num_groups: PositiveInt | None = None
    max_rerolls: Annotated[int, Field(ge=0, strict=True)] = 10

    @model_validator(mode="after")
    def _ordered(self) -> "FilterConfig":
        if self.min_success > self.max_success:
            raise ValueError(f"min_success={self.min_success} must not exceed max_success={self.max_success}")
        return self


class AdapterConfig(Config):
    """What an environment of other people's does not say of itself: see :class:`envs.adapter.AdaptedEnv`.

    Attributes:
        wrappers: ``module:function`` of environment to environment, applied in this order.
        instructions: task to the sentence that the policy reads; a task that is not in it is its own instruction.
        task_kwargs: task to what goes to ``gymnasium.make`` for it, beside ``env.kwargs``.
        success_info: key of ``info`` that is true in the step that succeeds.
        success_reward: reward of a step that succeeds, or more.
        success_termination: whatever terminates the environment's episode is success.
        state: keys of the observation that make the state, dots reaching into nested ones; ``null`` takes all that are
            no images.
        images: name to key of the observation, or ``render`` for what the environment's ``render()`` draws.
        image_size: pixels a side that images are resized to.
        expert: ``module:function`` of environment and observation to an action, for demonstrations.
    """

    wrappers: tuple[str, ...] = ()
    instructions: dict[str, str] = {}
    task_kwargs: dict[str, dict[str, Any]] = {}
    success_info: str | None = None
    success_reward: float | None = None
    success_termination: bool = False
    state: tuple[str, ...] | None = None
    images: dict[str, str] = {}
    image_size: PositiveInt | None = None
    expert: str | None = None

    @model_validator(mode="after")
    def _one_success(self) -> "AdapterConfig":
        named = [self.success_info is not None, self.success_reward is not None, self.success_termination]
        if sum(named) > 1:
            raise ValueError("success_info, success_reward and success_termination: only one may be set")
        return self

    @property
    def says_success(self) -> bool:
        """Whether it is defined when an episode succeeds."""
        return self.success_info is not None or self.success_reward is not None or self.success_termination

    def arguments(self, task: str) -> dict[str, Any]:
        """Return the adapter's keyword arguments for a task, ``kwargs`` left out."""
        chosen = self.model_dump(exclude={"instructions", "task_kwargs"})
        return {**chosen, "instruction": self.instructions.get(task)}


class EnvConfig(Config):
    """The environment, reached by its Gymnasium id.

    Attributes:
        id: Gymnasium id, with ``module:`` in front when a module must be imported to register it.
        tasks: one environment per instruction; the policy is conditioned on the instruction. Empty for a control task
            of Gymnasium's, which has one environment and no instruction.
        kwargs: passed on to ``gymnasium.make``.
        max_steps: environment steps after which an episode is truncated.
        adapter: makes any environment one with instructions, initial states and success; ``null`` for those that have
            them.
    """

    id: str
    tasks: tuple[str, ...]
    kwargs: dict[str, Any] = {}
    max_steps: PositiveInt
    adapter: AdapterConfig | None = None

    @model_validator(mode="after")
    def _adapter_fits(self) -> "EnvConfig":
        if self.adapter is None:
            return self
        if self.tasks and not self.adapter.says_success:
            raise ValueError(
                "adapter: needs success_info, success_reward or success_termination, to say when a task is done"
            )
        for key in ("instructions", "task_kwargs"):
            unknown = set(getattr(self.adapter, key)) - set(self.tasks)
            if unknown:
                raise ValueError(f"adapter.{key}: {sorted(unknown)[0]!r} is not among env.tasks {list(self.tasks)}")
        return self

    @property
    def first_task(self) -> str | None:
        """The first instruction's task, ``None`` without any."""
        return next(iter(self.tasks), None)


class RolloutConfig(Config):
    """How episodes are gathered.

    Attributes:
        num_workers: rollout processes, by custom one per core.
        envs_per_worker: environments stepped in each of them.
        num_groups: initial states per iteration.
        group_size: episodes from each of them.
        num_steps: of each environment and iteration, for control tasks: episodes go on over iterations, and
            num_groups and group_size say nothing. ``null`` plays whole episodes.
        temperature: of the softmax the actions are sampled from.
    """

    num_workers: PositiveInt
    envs_per_worker: PositiveInt
    num_groups: PositiveInt
    group_size: Annotated[int, Field(ge=2)]
    num_steps: PositiveInt | None = None
    temperature: PositiveFloat

    @model_validator(mode="after")
    def _divides(self) -> "RolloutConfig":
        if self.num_steps is None and self.num_groups % self.num_workers:
            raise ValueError(f"num_groups={self.num_groups} must be a multiple of num_workers={self.num_workers}")
        return self


class OptimizerConfig(Config):
    """How far a model is trained on the rows of one iteration.

    Attributes:
        learning_rate: of AdamW.
        epochs: passes over the rows.
    """

    learning_rate: PositiveFloat
    epochs: PositiveInt


class TrainerConfig(OptimizerConfig):
    """How the policy is trained; what is not in :class:`CriticConfig` holds for the critic too.

    Attributes:
        num_ranks: processes of the FSDP2 group.
        weight_decay, max_grad_norm, adam_epsilon: of AdamW.
        num_minibatches: optimizer steps per pass.
        micro_batch_rows: rows of one forward pass; ``null`` means all rows of the mini-batch.
        micro_batch_tokens: tokens of one forward pass instead: as many rows as hold that many.
        parity_tolerance: largest allowed difference between a rollout's log-probs and the trainer's.
        keep_checkpoints: newest checkpoints kept on disk.
    """

    num_ranks: PositiveInt
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    max_grad_norm: PositiveFloat = 1.0
    adam_epsilon: PositiveFloat = 1e-8
    num_minibatches: PositiveInt
    micro_batch_rows: PositiveInt | None = None
    micro_batch_tokens: PositiveInt | None = None
    parity_tolerance: PositiveFloat = 1e-4
    keep_checkpoints: PositiveInt = 2

    @model_validator(mode="after")
    def _one_limit(self) -> "TrainerConfig":
        if self.micro_batch_rows is not None and self.micro_batch_tokens is not None:
            raise ValueError("micro_batch_rows and micro_batch_tokens must not both be set")
        return self


class CriticConfig(OptimizerConfig):
    """How the critic is trained, where ``algorithm.advantage`` needs one (``gae``)."""

    learning_rate: PositiveFloat = 1e-3
    epochs: PositiveInt = 5


class WarmStartConfig(Config):
    """Supervised fine-tuning on demonstrations of the environment's scripted expert.

    Attributes:
        num_demos: successful expert episodes per task.
        steps, batch_size, learning_rate: of AdamW.
        smoothing_bins: standard deviation, in bins, of the Gaussian the target token is smoothed with.
    """

    num_demos: PositiveInt
    steps: PositiveInt
    batch_size: PositiveInt
    learning_rate: PositiveFloat
    smoothing_bins: Annotated[float, Field(ge=0)]


class EvaluationConfig(Config):
    """When and on how much the policy is tested.

    Attributes:
        num_goals: goals of the evaluation split per task, each run once per mode.
        every: evaluate after every so many iterations; ``null`` means before and after only.
        video: record an episode before and after, where rendering is available.
    """

    num_goals: PositiveInt
    every: PositiveInt | None = None
    video: bool = True


class ClusterConfig(Config):
    """What the workers run on.

    Attributes:
        device: of the policy in trainer and rollout workers.
        backend: of torch.distributed in the trainer group.
        cpus_per_worker, gpus_per_worker: what each worker asks of Ray.
        start_timeout: seconds the workers may take to start.
        node_timeout: seconds one node of the graph may take.
        buffer: of each Ray node.
    """

    device: Literal["cpu", "cuda"]
    backend: Literal["gloo", "nccl"]
    cpus_per_worker: Annotated[float, Field(ge=0)]
    gpus_per_worker: Annotated[float, Field(ge=0)] = 0.0
    start_timeout: PositiveFloat = 120.0
    node_timeout: PositiveFloat = 600.0
    buffer: BufferConfig = BufferConfig()

    @model_validator(mode="after")
    def _backend_fits(self) -> "ClusterConfig":
        if self.backend == "nccl" and self.device != "cuda":
            raise ValueError("backend=nccl needs device=cuda; allowed with device=cpu is gloo")
        return self


class TrackingConfig(Config):
    """Where metrics go besides ``metrics.jsonl``.

    Attributes:
        tensorboard: write event files to the run's folder.
        wandb: mode of Weights & Biases.
        wandb_project: its project.
    """

    tensorboard: bool = True
    wandb: Literal["disabled", "offline", "online"] = "disabled"
    wandb_project: str = "embodyflow"


class RunConfig(Config):
    """Everything a run is made of; ``flow`` is the training flow, which chooses pipeline and algorithm."""

    experiment: RunName
    flow: RunName
    seed: Annotated[int, Field(ge=0, lt=2**31, strict=True)]
    iterations: PositiveInt
    run_id: RunName | None = None
    run_root: str = "runs"
    pipeline: PipelineConfig
    algorithm: AlgorithmConfig
    filter: FilterConfig = FilterConfig()
    policy: PolicyConfig
    env: EnvConfig
    rollout: RolloutConfig
    trainer: TrainerConfig
    critic: CriticConfig = CriticConfig()
    warm_start: WarmStartConfig | None
    evaluation: EvaluationConfig | None
    cluster: ClusterConfig
    tracking: TrackingConfig = TrackingConfig()

    @model_validator(mode="after")
    def _sizes_fit(self) -> "RunConfig":
        num_tasks, num_groups = len(self.env.tasks), self.rollout.num_groups
        rows = self.rows_per_iteration
        if self.filter.num_groups is not None:
            rows = self.filter.num_groups * self.rollout.group_size
        if rows < self.trainer.num_ranks * self.trainer.num_minibatches:
            raise ValueError(
                f"trainer.num_ranks × trainer.num_minibatches must not exceed the {rows} rows of an iteration"
            )
        if self.rollout.num_steps is not None:
            return self
        if num_tasks and num_groups % num_tasks:
            raise ValueError(
                f"rollout.num_groups={num_groups} must be a multiple of the number of env.tasks ({num_tasks})"
            )
        if self.env.max_steps % self.policy.chunk_size:
            raise ValueError(
                f"env.max_steps={self.env.max_steps} must be a multiple of policy.chunk_size={self.policy.chunk_size}"
            )
        if (self.filter.num_groups or num_groups) % self.rollout.num_workers:
            raise ValueError(
                f"filter.num_groups={self.filter.num_groups} must be a multiple of "
                f"rollout.num_workers={self.rollout.num_workers}"
            )
        return self

    @model_validator(mode="after")
    def _control_fits(self) -> "RunConfig":
        """A Gaussian policy goes with steps of a control task, a policy of tokens with episodes of instructions."""
        is_control = self.policy.name == "mlp_gaussian"
        rules = {
            "rollout.num_steps": (self.rollout.num_steps is not None, "a number", "null"),
            "env.tasks": (not self.env.tasks, "[]", "the instructions to follow"),
            "evaluation": (self.evaluation is None, "null", "set"),
        }
        for key, (fits_control, of_control, of_others) in rules.items():
            if fits_control != is_control:
                allowed = of_control if is_control else of_others
                raise ValueError(f"{key} must be {allowed} with policy.name={self.policy.name}")
        if is_control and self.warm_start is not None:
            raise ValueError(f"warm_start must be null with policy.name={self.policy.name}: it takes no demonstrations")
        return self

    @model_validator(mode="after")
    def _a_row_fits_into_a_micro_batch(self) -> "RunConfig":
        limit, longest = self.trainer.micro_batch_tokens, self.num_decisions * self.policy.num_action_tokens
        if limit is not None and limit < longest:
            raise ValueError(
                f"trainer.micro_batch_tokens={limit}: must be at least {longest}, the tokens of an episode of "
                f"env.max_steps={self.env.max_steps}"
            )
        return self

    @model_validator(mode="after")
    def _every_worker_has_work(self) -> "RunConfig":
        wanted = {}
        if self.evaluation is not None:
            wanted["evaluation.num_goals"] = self.evaluation.num_goals * len(self.env.tasks)
        if self.warm_start is not None:
            wanted["warm_start.num_demos"] = self.warm_start.num_demos
        for key, episodes in wanted.items():
            if episodes < self.rollout.num_workers:
                raise ValueError(f"{key} must give each of rollout.num_workers={self.rollout.num_workers} an episode")
        return self

    @property
    def num_decisions(self) -> int:
        """Policy calls in an episode of full length."""
        return self.env.max_steps // self.policy.chunk_size

    @property
    def rows_per_iteration(self) -> int:
        """Rows gathered in one iteration: episodes, or steps of control tasks."""
        rollout = self.rollout
        if rollout.num_steps is not None:
            return rollout.num_workers * rollout.envs_per_worker * rollout.num_steps
        return rollout.num_groups * rollout.group_size

    @property
    def run_dir(self) -> Path:
        """The run's folder.

        Raises:
            ValueError: ``run_id`` has not been chosen yet.
        """
        if self.run_id is None:
            raise ValueError("run_id is not set")
        return Path(self.run_root) / self.run_id
