"""The Ray worker: one rank of a group, which runs node functions on its shard of the rows."""

import logging
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

from embodyflow.config import RunConfig
from embodyflow.data.metrics import as_metrics
from embodyflow.data.padding import facts_of, to_padded, to_ragged
from embodyflow.data.row_plan import RowFacts, ShardRef
from embodyflow.data.rows_file import read_rows, write_rows
from embodyflow.data.tables import digest_of, join_columns
from embodyflow.errors import WorkerLostError
from embodyflow.nodes.calling import bind
from embodyflow.references import resolve
from embodyflow.workers.buffer_client import BufferClient
from embodyflow.workers.calls import LogLine, NodeCall, NodeResult
from embodyflow.workers.deadline import time_limit

COMPUTE_THREADS = 4
"""Nodes that need no model and run on a rank at the same time, beside one that does."""


class _LogCapture(logging.Handler):
    """Keeps the log records of the thread that a node runs in, so that its Prefect task run can show them."""

    def __init__(self) -> None:
        super().__init__(level=logging.INFO)
        self.lines: list[LogLine] = []
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread:
            self.lines.append(LogLine(record.levelno, record.created, record.getMessage()))


@contextmanager
def _captured_logs() -> Iterator[list[LogLine]]:
    root, capture = logging.getLogger(), _LogCapture()
    root.addHandler(capture)
    try:
        yield capture.lines
    finally:
        root.removeHandler(capture)


@ray.remote(concurrency_groups={"compute": COMPUTE_THREADS})
class Worker:
    """One rank.

    Args:
        engine: ``"module:Class"`` of what the rank holds: environments and policy, or the trainer. It is built here,
            as ``Class(config, rank, world_size)``, and given to node functions as ``worker``.
        config: of the run.
        rank: 0 to ``world_size - 1``.
        world_size: ranks of the group.
        buffers: Ray node id to buffer.
    """

    def __init__(self, engine: str, config: RunConfig, rank: int, world_size: int, buffers: dict[str, Any]) -> None:
        logging.getLogger().setLevel(logging.INFO)
        self._rank = rank
        self._buffer = BufferClient(buffers)
        self._engine: Any = resolve(engine)(config, rank, world_size)
        self._engine_version = -1
        self._trained: dict[tuple[int, str], NodeResult] = {}
        self._half_trained_by: str | None = None

    def ready(self) -> int:
        """Return the process id: the answer says that the engine is built and not busy."""
        return os.getpid()

    @ray.method(concurrency_group="compute")
    def stacks(self) -> str:
        """Return where each thread of the process is, for people who want to know why it does not answer."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        frames = sys._current_frames().items()
        return "".join(f"thread {names.get(i, i)}:\n{''.join(traceback.format_stack(f))}" for i, f in frames)

    def free_address(self) -> str:
        """Return ``host:port`` at which this rank can lead a torch.distributed group."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{probe.getsockname()[1]}"

    def run_node(self, call: NodeCall) -> NodeResult:
        """Fetch the rank's rows, run the node function, put its output into this node's buffer.

        Nodes with a model run one after the other here; :meth:`run_compute_node` is for the others.

        Raises:
            TimeoutError: the function took longer than the call allows, and was interrupted.
            RuntimeError: it changed weights that it must only use.
            WorkerLostError: it is to train a model that another node left half trained.
            Exception: whatever the function raised.
        """
        if not call.trains:
            return self._run(call)
        key = call.iteration, call.node_id
        if key not in self._trained:
            self._check_whole()
            self._half_trained_by = call.node_id
            result = self._run(call)
            self._half_trained_by = None
            # Steps of iterations before are committed: nobody asks for them again.
            self._trained = {done: each for done, each in self._trained.items() if done[0] == call.iteration}
            self._trained[key] = result
        return self._trained[key]

    @ray.method(concurrency_group="compute")
    def run_compute_node(self, call: NodeCall) -> NodeResult:
        """Run a node that needs no model, beside whatever else runs on this rank; as :meth:`run_node`."""
        return self._run(call)

    def _run(self, call: NodeCall) -> NodeResult:
        # Torch, by way of tensordict; the flow's process, which knows this class by name, never imports it.
        from embodyflow.data.batches import to_batch, to_columns
        from embodyflow.types import NodeOutput

        started = time.perf_counter()
        with _captured_logs() as logs, time_limit(call.timeout, f"node {call.node_id}"):
            self._load_weights(call)
            batch = None
            if parts := [part for part in call.parents if part.slices]:  # a parent may pass no rows on
                batch = to_batch(to_padded(join_columns([self._buffer.get(part) for part in parts])))
            with self._weights_untouched(call):
                function = resolve(call.function)
                arguments = bind(function, batch, call.config, worker=self._engine, call=call)
                output = function(*arguments.args, **arguments.kwargs)
            if not isinstance(output, NodeOutput):
                given = type(output).__name__
                raise TypeError(f"node {call.node_id}: {call.function} must return a NodeOutput, gave {given}")
            shard, digest, facts = None, "", None
            if output.batch is not None and call.passes_rows_on:
                columns = to_ragged(to_columns(output.batch))
                digest, facts = digest_of(columns), facts_of(columns)
                if call.stage is not None:
                    write_rows(self._stage_file(call.stage), columns)
                    for journal in Path(call.stage).glob(f"{self._rank}.*.parts"):
                        journal.unlink()
                shard = self._buffer.put(f"{call.iteration}/{call.node_id}/{self._rank}", columns)
        return NodeResult(
            shard=shard,
            metrics=as_metrics(output.metrics),
            info=dict(output.info),
            digest=digest,
            seconds=time.perf_counter() - started,
            logs=tuple(logs),
            facts=facts,
        )

    @contextmanager
    def _weights_untouched(self, call: NodeCall) -> Iterator[None]:
        """Hold a node of ``only_forward_compute`` to its word."""
        before = self._engine.fingerprint() if call.only_forward_compute else None
        yield
        if before is not None and self._engine.fingerprint() != before:
            raise RuntimeError(
                f"node {call.node_id} changed weights although it is only_forward_compute, MODEL_INFERENCE or of role "
                "REFERENCE; take that away, or let it only use them"
            )

    def recall(
        self, node_id: str, iteration: int, stage: str, digests: tuple[str, ...]
    ) -> tuple[ShardRef, RowFacts | None]:
        """Put the rows that a node once made from its folder into this node's buffer; return also their facts.

        Args:
            node_id: the node.
            iteration: index of the iteration.
            stage: the node's folder.
            digests: of all ranks' rows.

        Raises:
            FileNotFoundError, DamageError: they are not there, or not those.
        """
        rows = read_rows(self._stage_file(stage), digests[self._rank])
        return self._buffer.put(f"{iteration}/{node_id}/{self._rank}", rows), facts_of(rows)

    def publish_weights(self, version: int) -> Any:
        """Put the engine's weights into the buffer as one shard; every rank must be called, rank 0 answers.

        Raises:
            WorkerLostError: a node left them half trained.
        """
        self._check_whole()
        columns, probe = self._engine.weights(), self._engine.probe()
        if self._rank != 0:
            return None
        # One row: a shard's columns agree in rows.
        flat = {name: array[None] for name, array in (columns | probe).items()}
        return self._buffer.put(f"weights/{version}/{self._rank}", flat), digest_of(columns)

    def invoke(self, method: str, *args: Any) -> Any:
        """Call a method of the engine."""
        return getattr(self._engine, method)(*args)

    def connect(self, address: str) -> None:
        """Have the engine join its group; its models are those of the start."""
        self._engine.connect(address)
        self._forget_training()

    def restore(self, folder: str) -> None:
        """Load the engine's state from a checkpoint: nothing has been trained since."""
        self._engine.load(folder)
        self._forget_training()

    def _forget_training(self) -> None:
        self._trained.clear()
        self._half_trained_by = None

    def _check_whole(self) -> None:
        if self._half_trained_by is not None:
            raise WorkerLostError(f"the model is half trained: node {self._half_trained_by} failed in its middle")

    def _stage_file(self, folder: str) -> Path:
        return Path(folder) / f"{self._rank}.rows"

    def _load_weights(self, call: NodeCall) -> None:
        """Bring the engine to the version the call asks for."""
        if call.weights is None or call.policy_version == self._engine_version:
            return
        columns = self._buffer.get_shard(call.weights)
        self._engine_version = -1  # none, should it be interrupted
        self._engine.update_weights({name: array[0] for name, array in columns.items()}, call.policy_version)
        self._engine_version = call.policy_version
