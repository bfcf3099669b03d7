"""The Ray worker: one rank of a group, which runs node functions on its shard of the rows."""

import asyncio
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import ray

from embodyflow.config import RunConfig
from embodyflow.config.run import MAX_GROUPS_IN_FLIGHT
from embodyflow.data.metrics import as_metrics
from embodyflow.data.padding import facts_of, to_padded, to_ragged
from embodyflow.data.parts import FullWeights, Part, PartsDigest, in_parts
from embodyflow.data.plans.row_plan import RankInput, RowFacts, ShardRef, WeightsRef
from embodyflow.data.ragged import Array
from embodyflow.data.rows_file import read_rows, write_rows
from embodyflow.data.tables import digest_of, join_columns
from embodyflow.errors import WorkerLostError
from embodyflow.nodes.calling import bind
from embodyflow.process.core_time import core_time_so_far
from embodyflow.process.heap import freeze_objects
from embodyflow.process.memory import peak_bytes, peak_device_bytes
from embodyflow.process.rendezvous import LOOPBACK, hold_address
from embodyflow.process.tracing import machine, record, span
from embodyflow.references import resolve
from embodyflow.workers.calls import (
    SHARED,
    WEIGHTS,
    ChainCall,
    GroupCall,
    LogLine,
    NodeCall,
    NodeResult,
    Published,
    Usage,
)
from embodyflow.workers.chains import run_chain
from embodyflow.workers.rank.deadline import time_limit
from embodyflow.workers.rank.group_player import GroupPlayer
from embodyflow.workers.rank.profiles import Profiles
from embodyflow.workers.rows.buffer_client import BufferClient
from embodyflow.workers.rows.buffers import FoundBuffers

if TYPE_CHECKING:  # torch, which the flow's process does without: it knows the worker by name only
    from embodyflow.nodes.engines import Engine, RolloutEngine, TrainerEngine
    from embodyflow.types import Batch, NodeOutput

MAX_LOG_LINES = 1000
"""Log lines of one node and rank that are kept. They travel to the Prefect server, which stores each of them."""

COMPUTE_THREADS = 4
"""How many nodes without a model a rank runs at once, beside one with it."""


class _LogCapture(logging.Handler):
    """Collects the log records of one thread, for the Prefect task run of the node that runs in it."""

    def __init__(self) -> None:
        super().__init__(level=logging.INFO)
        self.lines: list[LogLine] = []
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread != self._thread or len(self.lines) > MAX_LOG_LINES:
            return
        if len(self.lines) == MAX_LOG_LINES:
            note = f"the node logged more than {MAX_LOG_LINES} lines; the rest is dropped"
            self.lines.append(LogLine(logging.WARNING, record.created, note))
            return
        self.lines.append(LogLine(record.levelno, record.created, record.getMessage()))


@contextmanager
def _captured_logs() -> Iterator[list[LogLine]]:
    root, capture = logging.getLogger(), _LogCapture()
    root.addHandler(capture)
    try:
        yield capture.lines
    finally:
        root.removeHandler(capture)


@contextmanager
def _exhausted(parts: Iterator[Part]) -> Iterator[Iterator[Part]]:
    """Exhaust the parts at the end of the block even if it fails: the other ranks are in the same collectives."""
    try:
        yield parts
    finally:
        for _ in parts:
            pass


@ray.remote(concurrency_groups={"compute": COMPUTE_THREADS, "groups": MAX_GROUPS_IN_FLIGHT, "offers": 1})
class Worker:
    """One rank of a group.

    Args:
        engine: Engine class as ``"module:Class"``. The worker builds ``Class(config, rank, world_size)`` and passes it
            to node functions as ``worker``.
        config: Run configuration.
        rank: Index of the rank, from 0 to ``world_size - 1``.
        world_size: Number of ranks in the group.
        buffers: Buffer of each Ray node, by node id; those of nodes that join later are found by name.
        folder: Current folder of the run. Paths in ``config`` are relative to it, so the worker enters it, unless its
            machine has no such folder.
        trace: Folder to record a trace in, and name of this process there; ``None`` records nothing.
        profiles: Folder of the profiles that ``trainer.profile`` asks of this rank; ``None`` profiles nothing.
    """

    def __init__(
        self,
        engine: str,
        config: RunConfig,
        rank: int,
        world_size: int,
        buffers: dict[str, Any],
        folder: str,
        trace: tuple[str, str] | None = None,
        profiles: str | None = None,
    ) -> None:
        logging.getLogger().setLevel(logging.INFO)
        if os.path.isdir(folder):
            os.chdir(folder)
        # Ray uses uvloop where it is installed. With its policy, an event loop of asyncio's own starts no process.
        asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy())
        self._rank = rank
        if trace is not None:
            record(Path(trace[0]), trace[1])
        self._buffer = BufferClient(FoundBuffers(str(config.run_id), buffers))
        with span("build the engine", "call"):
            self._engine: Engine = resolve(engine)(config, rank, world_size)
        freeze_objects()
        self._groups = GroupPlayer(config, self._buffer)
        iterations = config.trainer.profile.iterations if profiles is not None else ()
        self._profiles = Profiles(Path(profiles or ""), iterations, rank, config.cluster.device)
        self._engine_version = -1
        self._trained: dict[tuple[int, str], NodeResult] = {}
        self._half_trained_by: str | None = None
        self._kept_errors: dict[tuple[int, str], Exception] = {}

    def ready(self) -> int:
        """Return the process id; the answer means that the engine is built and idle."""
        return os.getpid()

    @ray.method(concurrency_group="compute")
    def stacks(self) -> str:
        """Return the stack of every thread of the process, to debug a rank that does not answer."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        frames = sys._current_frames().items()
        return "".join(f"thread {names.get(i, i)}:\n{''.join(traceback.format_stack(f))}" for i, f in frames)

    @ray.method(concurrency_group="compute")
    def clock(self) -> tuple[str, int]:
        """Return the machine that this rank runs on, and its monotonic clock in ns."""
        return machine(), time.monotonic_ns()

    def node_id(self) -> str:
        """Return the id of the Ray node that this rank runs on."""
        return str(ray.get_runtime_context().get_node_id())

    def hold_address(self, on_one_node: bool) -> str:
        """Hold a ``host:port`` at which this rank can lead a torch.distributed group, and return it.

        Args:
            on_one_node: Whether all ranks are on this node, so that no other machine must reach the address.
        """
        return hold_address(LOOPBACK if on_one_node else ray.util.get_node_ip_address())

    def run_node(self, call: NodeCall) -> NodeResult:
        """Fetch the rank's rows, run the node function, put its output into this machine's buffer.

        Ray runs these calls one at a time; :meth:`run_compute_node` is for nodes without a model. A node that trains
        runs once: a repeated call returns the first result.

        Raises:
            TimeoutError: The function exceeded its time limit and was interrupted.
            RuntimeError: The function changed weights that it must leave alone.
            WorkerLostError: The node trains a model that another node left half trained.
            Exception: The node function raised it.
        """
        self._raise_kept_error(call)
        with self._profiles.node(call.iteration, call.node_id):
            return self._run_with_model(call)

    def run_chain(self, chain: ChainCall) -> list[NodeResult]:
        """Run nodes one after the other; return the results of those before the first that fails.

        The error of a node that fails is kept, and raised when the node is called by itself.

        Raises:
            Exception: The first node raised it.
        """

        def run(call: NodeCall) -> NodeResult:
            return self.run_node(call) if call.work.needs_model else self.run_compute_node(call)

        def keep_error(call: NodeCall, error: Exception) -> None:
            self._kept_errors = {(call.iteration, call.node_id): error}

        return run_chain(chain, run, keep_error)

    def _raise_kept_error(self, call: NodeCall) -> None:
        """Raise the error with which the node failed in a chain, once."""
        if (error := self._kept_errors.pop((call.iteration, call.node_id), None)) is not None:
            raise error

    def _run_with_model(self, call: NodeCall) -> NodeResult:
        if not call.work.trains:
            return self._run(call)
        key = call.iteration, call.node_id
        if key not in self._trained:
            self._require_whole_model()
            self._half_trained_by = call.node_id
            result = self._run(call)
            self._half_trained_by = None
            # Earlier iterations are committed: their results are not asked for any more.
            self._trained = {done: each for done, each in self._trained.items() if done[0] == call.iteration}
            self._trained[key] = result
        return self._trained[key]

    @ray.method(concurrency_group="compute")
    def run_compute_node(self, call: NodeCall) -> NodeResult:
        """Run a node that needs no model, beside whatever else runs on this rank; see :meth:`run_node`."""
        self._raise_kept_error(call)
        return self._run(call)

    @ray.method(concurrency_group="groups")
    def play_group(self, call: GroupCall) -> NodeResult:
        """Play a single group beside whatever else runs on this rank; see :class:`.GroupPlayer`."""
        return self._groups.play(call)

    @ray.method(concurrency_group="offers")
    def offer_weights(self, weights: dict[int, WeightsRef]) -> None:
        """Let single groups go on with the newest of these versions."""
        self._groups.offer(weights)

    @ray.method(concurrency_group="compute")
    def abandon_groups(self, stream: int) -> None:
        """Cancel the groups of all streams before this one."""
        self._groups.abandon(stream)

    def _run(self, call: NodeCall) -> NodeResult:
        needs_model = call.work.needs_model
        with span(call.node_id, "call", iteration=call.iteration, policy=call.policy_version, needs_model=needs_model):
            return self._timed(call)

    def _timed(self, call: NodeCall) -> NodeResult:
        started, core_time = time.perf_counter(), core_time_so_far()
        with _captured_logs() as logs, time_limit(call.timeout, f"node {call.node_id}"):
            self._load_weights(call)
            output = self._call_function(call, self._fetch(call.parents))
            shard, digest, facts = None, "", None
            if output.batch is not None and call.passes_rows_on:
                shard, digest, facts = self._put_rows(call, output.batch)
        return NodeResult(
            shard=shard,
            metrics=as_metrics(output.metrics),
            info=dict(output.info),
            digest=digest,
            seconds=time.perf_counter() - started,
            logs=tuple(logs),
            facts=facts,
            usage=Usage(*self._buffer.take_traffic(), peak_bytes(), peak_device_bytes()),
            core_time=core_time_so_far() - core_time,
        )

    def _fetch(self, parents: tuple[RankInput, ...]) -> "Batch | None":
        """Return this rank's rows with the columns of all parents; ``None`` if no parent passes rows on."""
        from embodyflow.data.batches import to_batch

        parts = [part for part in parents if part.slices]
        if not parts:
            return None
        shards = sorted({piece.shard.shard_id for part in parts for piece in part.slices})
        with span("read rows", "rows", reads=shards, rows=len(parts[0].positions)):
            return to_batch(to_padded(join_columns([self._buffer.get(part) for part in parts])))

    def _call_function(self, call: NodeCall, batch: "Batch | None") -> "NodeOutput":
        from embodyflow.types import NodeOutput

        work = call.work
        function = resolve(work.function)
        with self._weights_unchanged(call):
            arguments = bind(function, batch, work.config, worker=self._engine, call=call)
            output = function(*arguments.args, **arguments.kwargs)
        if not isinstance(output, NodeOutput):
            given = type(output).__name__
            raise TypeError(f"node {work.node_id}: {work.function} must return a NodeOutput, gave {given}")
        if work.segment is not None and not work.segment.is_last and output.batch is not None:
            raise TypeError(
                f"node {work.node_id}: {work.function} passes rows on before its last segment; with rollout.interrupt "
                "it must call tasks.generate"
            )
        return output

    def _put_rows(self, call: NodeCall, batch: "Batch") -> tuple[ShardRef, str, RowFacts | None]:
        """Put a node's rows into the buffer, and into its stage if it has one; return shard, digest and facts."""
        from embodyflow.data.batches import to_columns

        shard_id = f"{call.iteration}/{call.node_id}/{self._rank}"
        with span("write rows", "rows", writes=shard_id, rows=len(batch)):
            columns = to_ragged(to_columns(batch))
            digest, facts = digest_of(columns), facts_of(columns)
            if (stage := call.work.stage) is not None:
                write_rows(_stage_file(stage, self._rank), columns)
                # A repeated last segment, which has no weights for the earlier ones, goes on from their journals.
                for journal in Path(stage).glob(f"{self._rank}.*.parts") if call.work.segment is None else ():
                    journal.unlink()
            return self._buffer.put(shard_id, columns), digest, facts

    @contextmanager
    def _weights_unchanged(self, call: NodeCall) -> Iterator[None]:
        """Check that the block leaves the weights alone, if the call asks for it."""
        before = self._trainer.fingerprint() if call.checks_weights else None
        yield
        if before is not None and self._trainer.fingerprint() != before:
            raise RuntimeError(
                f"node {call.node_id} changed weights although it is only_forward_compute, MODEL_INFERENCE or of role "
                "REFERENCE; remove that, or let the node only use the weights"
            )

    def recall(
        self, node_id: str, iteration: int, stage: str, number: int, digest: str
    ) -> tuple[ShardRef, RowFacts | None]:
        """Put the rows that a rank wrote to a node's stage back into this machine's buffer; return shard and facts.

        Args:
            node_id: Name of the node.
            iteration: Index of the iteration.
            stage: Folder of the node's rows.
            number: The rank that wrote them, this one or another.
            digest: SHA-256 of its rows.

        Raises:
            FileNotFoundError: The rows are gone.
            DamageError: The rows differ from those that were written.
        """
        shard_id = f"{iteration}/{node_id}/{number}"
        with span("recall rows", "rows", writes=shard_id, iteration=iteration):
            rows = read_rows(_stage_file(stage, number), digest)
            return self._buffer.put(shard_id, rows), facts_of(rows)

    def publish_weights(self, version: int) -> Published | None:
        """Put the weights that training changes into the buffer as one shard; return what is published on rank 0.

        Every rank must be called. Rank 0 writes the weights part by part and never holds a copy of the whole.

        Raises:
            WorkerLostError: A node left the model half trained.
        """
        self._require_whole_model()
        shard_id = f"{WEIGHTS}{version}/{self._rank}"
        with span("publish weights", "weights", version=version, **({} if self._rank else {"writes": shard_id})):
            self._profiles.end(version)
            probe, weights = self._trainer.probe(), self._trainer.weights_in_parts()
            with _exhausted(weights.parts) as parts:
                return self._publish(shard_id, weights, parts, probe) if self._rank == 0 else None

    def _publish(
        self, shard_id: str, weights: FullWeights, parts: Iterator[Part], probe: Mapping[str, Array]
    ) -> Published:
        outlines, frozen = weights.outlines, weights.frozen
        whole, shared = PartsDigest(outlines), PartsDigest({name: outlines[name] for name in frozen})

        def own() -> Iterator[Part]:
            for part in whole.watch(parts):
                if part.name in frozen:
                    shared.add(part)
                else:
                    yield part

        changing = {name: array for name, array in outlines.items() if name not in frozen}
        shard = self._buffer.put_in_parts(shard_id, _one_row({**changing, **probe}), chain(own(), in_parts(probe)))
        return Published(shard, whole.hexdigest(), shared.hexdigest() if frozen else None)

    def share_weights(self, digest: str) -> ShardRef | None:
        """Put the weights that training leaves alone into the buffer; return their shard on rank 0.

        Every rank must be called.

        Args:
            digest: Their SHA-256, of :meth:`publish_weights`; it names the shard.

        Raises:
            RuntimeError: They have another digest by now.
        """
        shard_id = f"{SHARED}{digest}/{self._rank}"
        with span("share weights", "weights", **({} if self._rank else {"writes": shard_id})):
            weights = self._trainer.weights_in_parts(frozen_only=True)
            with _exhausted(weights.parts) as parts:
                if self._rank != 0:
                    return None
                found = PartsDigest(weights.outlines)
                shard = self._buffer.put_in_parts(shard_id, _one_row(weights.outlines), found.watch(parts))
                if found.hexdigest() != digest:
                    raise RuntimeError("weights that training must leave alone changed while they were published")
                return shard

    def invoke(self, method: str, *args: Any) -> Any:
        """Call a method of the engine."""
        with span(method, "call"):
            return getattr(self._engine, method)(*args)

    def connect(self, address: str) -> None:
        """Join the trainer's process group; the models are those of the start."""
        self._trainer.connect(address)
        self._forget_training()

    def restore(self, folder: str) -> None:
        """Load the trainer's state from a checkpoint."""
        with span("restore", "disk", checkpoint=Path(folder).name):
            self._trainer.load(folder)
        self._forget_training()

    @property
    def _trainer(self) -> "TrainerEngine":
        return cast("TrainerEngine", self._engine)

    def _forget_training(self) -> None:
        self._trained.clear()
        self._half_trained_by = None
        self._kept_errors.clear()
        self._profiles.drop()

    def _require_whole_model(self) -> None:
        if self._half_trained_by is not None:
            raise WorkerLostError(f"the model is half trained: node {self._half_trained_by} failed mid-step")

    def _load_weights(self, call: NodeCall) -> None:
        """Load the weights that the call asks for, unless the engine has them."""
        if call.weights is None or call.policy_version == self._engine_version:
            return
        with span("load weights", "weights", version=call.policy_version, reads=call.weights.shard_ids):
            weights = self._buffer.get_weights(call.weights)
            self._engine_version = -1  # a load that is interrupted leaves no usable version
            engine = cast("RolloutEngine", self._engine)
            engine.update_weights(weights, call.policy_version)
            self._engine_version = call.policy_version


def _one_row(outlines: Mapping[str, Array]) -> dict[str, Array]:
    """Return outlines of columns of one row: all columns of a shard have the same number of rows."""
    return {name: array[None] for name, array in outlines.items()}


def _stage_file(folder: str, rank: int) -> Path:
    return Path(folder) / f"{rank}.rows"
