"""Language jobs: a causal language model answers prompts, and a reward function scores its responses."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializeAsAny, model_validator

from embodyflow.config.base import Config, PositiveFloat, PositiveInt
from embodyflow.config.generation import MIN_TEMPERATURE, GenerationConfig, HFConfig, RemoteConfig, VLLMConfig
from embodyflow.config.grouped import GroupedConfig, GroupRolloutConfig
from embodyflow.config.run import EvaluationConfig, Records, WarmStartConfig
from embodyflow.config.summary import success_line, success_summary
from embodyflow.config.trainer import check_tolerance
from embodyflow.policies.language.causal_lm.configuration_causal_lm import CausalLMConfig
from embodyflow.prompts.prompt_config import PromptConfig, RowsConfig
from embodyflow.rewards.reward_config import RewardConfig


class InterruptConfig(Config):
    """When a response that is being sampled goes on with newer weights; needs ``rollout.max_staleness``.

    Attributes:
        every: T: tokens T, 2T, … of a response are the first ones of a newer version; ``null`` samples a response with
            one version. Token t of iteration i has version min(i − 1 − k + ⌊t / T⌋, i − 1) with k =
            ``rollout.max_staleness``, where 0 is the smallest version.
        when: Moments at which a response goes on with newer weights: at token indices by ``every``, or as soon as a
            version is ``published``. The latter needs ``rollout.mode=streaming`` and ``rollout.order=first_ready``,
            whose record names the moments.
        cache: Keys and values of the tokens so far, where newer weights come when ``published``: ``recompute`` them
            with these, or ``keep`` them. Kept ones cost no time, and make the log-probs of later tokens differ from
            those of any version.
    """

    every: PositiveInt | None = None
    when: Literal["at_tokens", "published"] = "at_tokens"
    cache: Literal["recompute", "keep"] = "recompute"

    @model_validator(mode="after")
    def _check_when(self) -> "InterruptConfig":
        if self.when == "published" and self.every is not None:
            raise ValueError(f"every={self.every}: allowed is null with when=published, which follows no token index")
        if self.cache == "keep" and self.when != "published":
            raise ValueError("cache=keep: allowed with when=published; at token indices the cache is recomputed")
        return self


class ResponseRolloutConfig(GroupRolloutConfig):
    """How rollout workers sample responses. Responses of a group share their prompt.

    Attributes:
        max_prompt_tokens: Most tokens of a prompt. Longer prompts are never truncated.
        max_response_tokens: Most tokens of a response, including the token that ends it.
        stop_tokens: Texts of further tokens that end a response, besides those of tokenizer and model, such as a line
            break for a model that continues its prompt's examples.
        groups_per_call: Groups that a worker samples together. The worker saves them when they are complete, so that
            its replacement samples only the remaining ones; ``null`` means all groups, which keeps the engine busiest.
        probe_tolerance: Largest allowed difference between the log-probs of rollout and trainer on a few fixed
            sequences, relative to log-probs beyond 1, checked before new weights are used.
        interrupt: When a response goes on with newer weights. Only the engine ``hf`` can.
        generation: Generation engine.
    """

    temperature: Annotated[float, Field(ge=MIN_TEMPERATURE, le=1000)]
    max_prompt_tokens: PositiveInt
    max_response_tokens: PositiveInt
    stop_tokens: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    groups_per_call: PositiveInt | None = None
    probe_tolerance: PositiveFloat = 1e-4
    interrupt: InterruptConfig = InterruptConfig()
    generation: GenerationConfig

    @property
    def longest_row(self) -> int:
        """Tokens of the longest prompt plus the longest response."""
        return self.max_prompt_tokens + self.max_response_tokens

    @property
    def swaps_weights(self) -> bool:
        """Whether a response goes on with newer weights."""
        return self.interrupt.every is not None

    @property
    def swaps_when_published(self) -> bool:
        """Whether a row that is being sampled goes on with newer weights as soon as these are published."""
        return self.interrupt.when == "published"

    @property
    def keeps_cache(self) -> bool:
        """Whether newer weights go on with keys and values of older ones, which no clean pass has."""
        return self.interrupt.cache == "keep"

    @model_validator(mode="after")
    def _check_interrupt(self) -> "ResponseRolloutConfig":
        if not self.swaps_weights:
            return self
        given = f"interrupt.every={self.interrupt.every}"
        if not isinstance(self.generation, HFConfig):
            raise ValueError(f"{given}: allowed is null with generation.name={self.generation.name}; only hf continues")
        if self.max_staleness == 0:
            raise ValueError(f"{given}: allowed is null with max_staleness=0, which has no newer weights to wait for")
        return self

    @model_validator(mode="after")
    def _check_published(self) -> "ResponseRolloutConfig":
        if not self.swaps_when_published:
            return self
        given = "interrupt.when=published"
        if not isinstance(self.generation, HFConfig):
            raise ValueError(f"{given}: allowed with generation.name=hf, not {self.generation.name}; only hf continues")
        self.check_published()
        return self

    @model_validator(mode="after")
    def _check_engine(self) -> "ResponseRolloutConfig":
        limit = self.generation.max_model_len
        if limit is not None and limit < self.longest_row:
            raise ValueError(
                f"generation.max_model_len={limit}: must be null or at least {self.longest_row}, "
                f"max_prompt_tokens={self.max_prompt_tokens} + max_response_tokens={self.max_response_tokens}"
            )
        if isinstance(self.generation, RemoteConfig) and self.generation.weight_update == "refused":
            raise ValueError(
                "generation.weight_update=refused: the server needs the trained weights; allowed are "
                "reload_weights and reload_weights_and_heads, with generation.weights_folder"
            )
        return self


class ResponseWarmStartConfig(WarmStartConfig):
    """Supervised fine-tuning on the prompt source's demonstrations."""

    samples: ClassVar[str] = "embodyflow.training.imitation.imitation:ResponseSamples"


class PromptEvaluationConfig(EvaluationConfig):
    """When the policy is evaluated, and on how many prompts.

    Attributes:
        num_prompts: Prompts of the validation split.
        num_samples: Responses to each prompt in the mode ``sampled``, for pass@k; the mode ``greedy`` has one.
        num_shown: Responses in the table that the evaluation shows.
    """

    num_prompts: PositiveInt
    num_samples: PositiveInt = 1
    num_shown: Annotated[int, Field(ge=0, strict=True)] = 12


class LanguageConfig(GroupedConfig):
    """The configuration of a language run."""

    kind: ClassVar[str] = "language"
    rollout_engine: ClassVar[str] = "embodyflow.rollouts.language.language_rollout:LanguageRollout"
    group_engine: ClassVar[str | None] = "embodyflow.rollouts.streaming.language_groups:LanguageGroups"
    interrupted_group_engine: ClassVar[str | None] = (
        "embodyflow.rollouts.streaming.interrupted_groups:InterruptedLanguageGroups"
    )
    trainer_engine: ClassVar[str] = "embodyflow.training.language_trainer:LanguageTrainer"
    headline: ClassVar[Mapping[str, str]] = {
        "rollout/success_rate": "success",
        "rollout/reward": "reward",
        "groups/mixed_fraction": "mixed",
    }
    pipelines: ClassVar[tuple[str, ...]] = (
        *("language_grpo", "grpo", "ppo", "dapo"),
        *("remax", "grpo_kl_reward", "ppo_kl_reward"),
    )
    check: ClassVar[str] = "embodyflow.rollouts.language.language_checks:check_language"
    splits_models: ClassVar[bool] = True
    pipeline_tag: ClassVar[str] = "text-generation"
    warm_start_keys: ClassVar[frozenset[str]] = frozenset({"seed", "data", "policy", "warm_start"})

    policy: SerializeAsAny[CausalLMConfig]
    data: PromptConfig
    reward: RewardConfig
    rollout: ResponseRolloutConfig
    warm_start: ResponseWarmStartConfig | None
    evaluation: PromptEvaluationConfig

    @model_validator(mode="after")
    def _check_response_sizes(self) -> "LanguageConfig":
        rollout, scratch = self.rollout, self.policy.scratch
        if scratch is not None and rollout.longest_row > scratch.max_position_embeddings:
            raise ValueError(
                f"rollout.max_prompt_tokens + rollout.max_response_tokens = {rollout.longest_row} exceed "
                f"policy.scratch.max_position_embeddings={scratch.max_position_embeddings}"
            )
        check_tolerance("rollout.probe_tolerance", rollout.probe_tolerance, self.precisions)
        self._check_share("evaluation.num_prompts", self.evaluation.num_prompts)
        if self.warm_start is not None:
            self._check_share("warm_start.num_demos", self.warm_start.num_demos)
        return self

    @model_validator(mode="after")
    def _check_engine_gpus(self) -> "LanguageConfig":
        engine, gpus = self.rollout.generation, self.cluster.gpus_per_worker
        if not isinstance(engine, VLLMConfig) or self.cluster.device != "cuda":
            return self
        if engine.tensor_parallel_size > max(gpus, 1):
            raise ValueError(
                f"rollout.generation.tensor_parallel_size={engine.tensor_parallel_size}: a worker has "
                f"cluster.gpus_per_worker={gpus:g}; set that to {engine.tensor_parallel_size}, or tensor_parallel_size "
                f"to at most {max(int(gpus), 1)}"
            )
        if engine.gpu_memory_utilization > gpus:
            raise ValueError(
                f"rollout.generation.gpu_memory_utilization={engine.gpu_memory_utilization:g}: workers with "
                f"cluster.gpus_per_worker={gpus:g} share a GPU and its memory; set "
                f"rollout.generation.gpu_memory_utilization={gpus:g}, or less"
            )
        return self

    @model_validator(mode="after")
    def _check_streaming_engine(self) -> "LanguageConfig":
        rollout = self.rollout
        if self.streams and not isinstance(rollout.generation, HFConfig):
            raise ValueError(
                f"rollout.mode=streaming: allowed with rollout.generation.name=hf, not {rollout.generation.name}, "
                "whose log-probs depend on the responses beside a group"
            )
        if self.streams and rollout.groups_per_call is not None:
            raise ValueError(
                f"rollout.groups_per_call={rollout.groups_per_call}: allowed is null with rollout.mode=streaming, "
                "where each group is saved when it is complete; see rollout.groups_in_flight"
            )
        return self

    @model_validator(mode="after")
    def _check_scaled_engine(self) -> "LanguageConfig":
        engine = self.rollout.generation
        if self.rollout.autoscale is None:
            return self
        if isinstance(engine, RemoteConfig):
            raise ValueError(
                "rollout.autoscale: allowed with rollout.generation.name=hf and vllm, not remote, whose one server "
                "answers all workers"
            )
        if isinstance(engine, VLLMConfig) and engine.tensor_parallel_size > 1:
            raise ValueError(
                f"rollout.autoscale: allowed with rollout.generation.tensor_parallel_size=1, not "
                f"{engine.tensor_parallel_size}"
            )
        return self

    @model_validator(mode="after")
    def _check_attention(self) -> "LanguageConfig":
        attention, device, precision = self.policy.attn_implementation, self.cluster.device, self.trainer.precision
        if attention == "flash_attention_2" and (device, precision) != ("cuda", "bfloat16"):
            raise ValueError(
                f"policy.attn_implementation={attention} needs cluster.device=cuda and trainer.precision=bfloat16, "
                f"not {device} and {precision}; allowed here are sdpa and eager"
            )
        return self

    @property
    def task_name(self) -> str:
        """Name of the dataset or of the generated prompts."""
        source = self.data.data_source if isinstance(self.data, RowsConfig) else None
        return source or f"prompts of the kind {self.data.name}"

    @property
    def precisions(self) -> dict[str, str]:
        """Precisions of trainer and generation engine by key; a server's own precision is unknown."""
        engine = getattr(self.rollout.generation, "dtype", "float32")
        return super().precisions | {"rollout.generation.dtype": engine}

    @property
    def longest_row(self) -> tuple[int, str]:
        """Tokens of the longest prompt plus the longest response, and their description."""
        rollout = self.rollout
        return rollout.longest_row, (
            f"rollout.max_prompt_tokens={rollout.max_prompt_tokens} and "
            f"rollout.max_response_tokens={rollout.max_response_tokens}"
        )

    def warm_start_facts(self) -> dict[str, Any]:
        """Return every part of the configuration that warm-started weights depend on, as JSON-able values."""
        facts = super().warm_start_facts()
        if isinstance(self.data, RowsConfig) and self.data.too_long == "skip":  # decides which rows are demonstrations
            facts["max_prompt_tokens"] = self.rollout.max_prompt_tokens
        return facts

    @property
    def warm_start_files(self) -> tuple[str, ...]:
        """Files of the model and of demonstrations."""
        return super().warm_start_files + (self.data.files("demo") if isinstance(self.data, RowsConfig) else ())

    @property
    def row_capacity(self) -> int:
        """Tokens of the longest response."""
        return self.rollout.max_response_tokens

    def summarize(self, records: Records) -> dict[str, Any]:
        """Return success rates on validation prompts before and after training."""
        return success_summary(records, self.iterations)

    @staticmethod
    def summary_line(summary: Mapping[str, Any]) -> str:
        """Format the success rates as one line."""
        return success_line(summary)
