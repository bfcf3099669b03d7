"""Generation by a running ``vllm serve`` outside of the run's own processes."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from embodyflow.config.generation import RemoteConfig
from embodyflow.errors import ConfigError
from embodyflow.generation.http_client import HTTPClient
from embodyflow.generation.interface import (
    Arrivals,
    Completion,
    FinishReason,
    GenerationError,
    Request,
    Sampling,
    check_requests,
    check_sequences,
    max_tokens_of,
)
from embodyflow.generation.streams import AllAtOnce, StreamGuard, in_order
from embodyflow.generation.weights import ModelWeights
from embodyflow.process.files.file_modes import follow_umask

STREAM_INTERVAL = 64  # tokens per event of a streamed response
COMPLETIONS_PATH = "/v1/completions"
ARRIVALS_INTERVAL = 0.01  # seconds between two looks at arrivals while no completion finishes


class RemoteEngine:
    """Implements :class:`~embodyflow.generation.interface.GenerationEngine`.

    The server keeps its model and its latest weights after :meth:`close`.

    Args:
        config: Address of the server and its method for weight updates.
        model_path: Hugging Face folder of the model that the server serves.

    Raises:
        ConfigError: The server does not serve the model, or was not started as :class:`RemoteConfig` requires.
        GenerationError: The server cannot be reached.
    """

    def __init__(self, config: RemoteConfig, model_path: Path) -> None:
        self.version = 0
        self._config = config
        self._weights = ModelWeights.of_folder(model_path)
        self._client = HTTPClient(config)
        self._guard = StreamGuard()
        try:
            self._model, served_max_model_len = self._served_model()
            self._max_model_len = config.max_model_len or min(self._weights.max_positions, served_max_model_len)
            self._check_log_probs()
        except BaseException:
            self.close()
            raise

    def stream(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        """Yield completions as they finish."""
        check_requests(enumerate(requests), sampling, self._weights.vocab_size, self._max_model_len)
        return self._run(AllAtOnce(requests), sampling)

    def serve(self, arrivals: Arrivals, sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        """Yield completions as they finish, while further requests arrive; the server decides which share a step."""
        return self._run(arrivals, sampling)

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """Return the completions in the order of the requests."""
        return in_order(self.stream(requests, sampling))

    def score(self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[npt.NDArray[np.float32]]:
        """Return the responses' log-probs at temperature 1."""
        # The server always draws one token, so a sequence of full length would not fit.
        check_sequences(sequences, self._weights.vocab_size, self._max_model_len - 1)
        self._guard.require_closed("score")
        with ThreadPoolExecutor(self._config.max_concurrency) as threads:
            return list(threads.map(self._score, sequences))

    def update_weights(self, weights: Mapping[str, npt.NDArray[Any]], version: int) -> None:
        """Write the weights to a folder, make the server load them, and reset its prefix cache."""
        self._guard.require_closed("update_weights")
        if self._config.weights_folder is None:
            raise ConfigError(
                "weight_update=refused: the server cannot get new weights; allowed is reload_weights or "
                "reload_weights_and_heads, with weights_folder"
            )
        self._weights.check(weights)
        folder = Path(tempfile.mkdtemp(prefix=f"version-{version}-", dir=self._config.weights_folder))
        try:
            folder.chmod(0o755)  # the server may run as another user
            arrays = {name: np.ascontiguousarray(a) for name, a in self._weights.by_canonical_name(weights).items()}
            save_file(arrays, folder / "model.safetensors", metadata={"format": "pt"})
            follow_umask(folder)
            call = {"method": self._config.weight_update, "kwargs": {"weights_path": str(folder)}}
            self._client.post("/collective_rpc", call)
        finally:
            shutil.rmtree(folder)
        if not self._client.post("/reset_prefix_cache?reset_running_requests=true", {})["success"]:
            raise GenerationError(f"{self._config.base_url} did not reset the prefix cache of the old weights")
        self.version = version

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _run(self, arrivals: Arrivals, sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        abandoned, position_of = Event(), dict[Future[Completion], int]()
        with self._guard.hold(), ThreadPoolExecutor(self._config.max_concurrency) as threads:
            try:
                while True:
                    arrived = arrivals.take(idle=not position_of)
                    check_requests(arrived, sampling, self._weights.vocab_size, self._max_model_len)
                    for position, request in arrived:
                        position_of[threads.submit(self._complete, request, sampling, abandoned)] = position
                    if not position_of:
                        return
                    done, _ = wait(position_of, timeout=ARRIVALS_INTERVAL, return_when=FIRST_COMPLETED)
                    for completed in done:
                        yield position_of.pop(completed), completed.result()
            finally:
                abandoned.set()
                threads.shutdown(wait=True, cancel_futures=True)

    def _complete(self, request: Request, sampling: Sampling, abandoned: Event) -> Completion:
        events = self._client.post_streaming(COMPLETIONS_PATH, self._body(request, sampling), abandoned)
        choices = [event["choices"][0] for event in events if event["choices"]]
        tokens = tuple(token for choice in choices for token in choice["token_ids"])
        log_probs = tuple(x for choice in choices if choice["logprobs"] for x in choice["logprobs"]["token_logprobs"])
        return Completion(tokens, log_probs, _finish_reason(choices, tokens, log_probs), self.version)

    def _body(self, request: Request, sampling: Sampling) -> dict[str, Any]:
        return {
            "model": self._model,
            "prompt": list(request.prompt_ids),
            "seed": request.seed,
            "max_tokens": max_tokens_of(request, sampling),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or 0,
            "min_p": sampling.min_p,
            "repetition_penalty": 1.0,  # overrides the model's generation_config.json
            "stop": list(sampling.stop),
            "stop_token_ids": list(sampling.stop_token_ids),
            "ignore_eos": True,
            "skip_special_tokens": False,
            "logprobs": 0,  # only for the sampled token
            "return_token_ids": True,
            "stream": True,
            "stream_interval": STREAM_INTERVAL,
        }

    def _score(self, sequence: tuple[Sequence[int], Sequence[int]]) -> npt.NDArray[np.float32]:
        prompt, response = sequence
        body = {"model": self._model, "prompt": [*prompt, *response], "max_tokens": 1, "prompt_logprobs": 0}
        [choice] = self._client.post(COMPLETIONS_PATH, body)["choices"]
        rows = choice["prompt_logprobs"][len(prompt) :]
        return np.array(
            [row[str(token)]["logprob"] for token, row in zip(response, rows, strict=True)], dtype=np.float32
        )

    def _served_model(self) -> tuple[str, int]:
        """Return the model's name on the server and its maximum length in tokens."""
        served = {card["id"]: card["max_model_len"] for card in self._client.get("/v1/models")["data"]}
        name = next(iter(served)) if self._config.model is None and len(served) == 1 else self._config.model
        if name is None or name not in served:
            allowed = ", ".join(sorted(served))
            raise ConfigError(f"model={name}: {self._config.base_url} does not serve it; allowed is {allowed}")
        return name, served[name]

    def _check_log_probs(self) -> None:
        """Check that the server's log-probs are those of the sampling distribution: with top_k=1 they must be 0."""
        [log_prob] = self._complete(Request((0,), seed=0), Sampling(max_tokens=1, top_k=1), Event()).log_probs
        if log_prob != 0:
            raise ConfigError(
                f"base_url={self._config.base_url}: the server's log-probs are not those of its sampling distribution; "
                "start it with --logprobs-mode processed_logprobs"
            )


def _finish_reason(choices: list[Any], tokens: tuple[int, ...], log_probs: tuple[float, ...]) -> FinishReason:
    reason: FinishReason | None = choices[-1]["finish_reason"] if choices else None
    if reason not in ("stop", "length") or len(tokens) != len(log_probs):
        raise GenerationError(
            f"the server ended a completion with {reason!r}, {len(tokens)} tokens and {len(log_probs)} log-probs"
        )
    return reason
