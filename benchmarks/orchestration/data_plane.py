"""The time to move rows from one worker group to another on one machine.

Run ``python -m benchmarks.orchestration.data_plane`` (needs ``uv pip install verl transformers TransferQueue``).
Contenders take turns in each round, so other load on the machine affects all of them alike:

* ``ours``: each source puts its rows into the node's buffer, the driver plans, and each target reads its part into a
  writable TensorDict;
* ``verl``: verl's own code for its single controller returns the sources' rows to the driver, concatenates them, splits
  them into chunks and passes these to the targets; flat rows are a ``DataProto``, ragged rows TensorDicts of nested
  tensors;
* ``transfer queue``: TransferQueue, the data plane of current verl, with its default storage and key-value interface:
  each source puts its rows under a key for each, the driver passes keys, and each target gets its rows by them;
* ``ray refs``: each source splits its rows and ``ray.put``s a dict of tensors per target; each target gets its pieces
  and joins them into a TensorDict;
* ``memcpy``: each target copies the same number of bytes once, between warm pages;
* ``calls``: Ray calls each source and then each target with a function that does nothing, a lower bound for two calls.

``deliver`` ends when all targets hold their rows, ``read`` when each has also read every byte of them. No worker reads
its own rows. Times are medians in milliseconds; ``driver_bytes`` is the number of bytes that a round pickles in the
driver. ``--quick`` has two sources and two targets, and leaves out verl and TransferQueue.
"""

import argparse
import itertools
import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray
import torch
from ray import cloudpickle
from tensordict import TensorDict

from benchmarks.commands import ROOT
from embodyflow.config.buffer import BufferConfig
from embodyflow.data.batches import to_batch, to_columns
from embodyflow.data.plans.row_plan import RankInput, ShardRef, split_evenly
from embodyflow.workers.rows.buffer_client import BufferClient
from embodyflow.workers.rows.buffers import start_buffers

RESULTS = ROOT / "benchmarks" / "results" / "data_plane.json"
LAYOUTS = ((2, 2), (4, 4), (8, 8), (8, 2), (2, 8))
NUM_RANKS = 10
NUM_ROWS = 512
PARTITION = "rows"
ROUNDS = {1: 15, 100: 9, 500: 3, 1000: 3}  # number of rounds by megabytes
TOO_LARGE = {("verl", "flat", 1000)}  # does not fit into 24 GB of memory: its driver alone needs more than 8 GB
TARGETS = {"verl": 10.0, "ray refs": 2.0, "memcpy": 0.4}


# ---- rows


def flat_rows(rank: int, num_ranks: int, num_bytes: int) -> TensorDict:
    """Return rows with the columns of an embodied job: images, states, log-probs."""
    generator, width = np.random.default_rng(rank), num_bytes // NUM_ROWS // 16
    first, stop = NUM_ROWS * rank // num_ranks, NUM_ROWS * (rank + 1) // num_ranks
    columns = {
        "uid": np.arange(first, stop),
        "image": generator.integers(0, 255, (stop - first, 8 * width), np.uint8),
        "state": generator.random((stop - first, width), np.float32),
        "log_probs": generator.random((stop - first, width), np.float32),
    }
    return TensorDict({name: torch.from_numpy(array) for name, array in columns.items()}, [stop - first])


def ragged_rows(rank: int, num_ranks: int, num_bytes: int) -> TensorDict:
    """Return rows with the columns of a language job: tokens and log-probs of log-normal length."""
    lengths = np.random.default_rng(0).lognormal(0.0, 0.5, NUM_ROWS)
    lengths = np.maximum(lengths / lengths.sum() * num_bytes / 12, 1).astype(np.int64)
    lengths = lengths[NUM_ROWS * rank // num_ranks : NUM_ROWS * (rank + 1) // num_ranks]
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]))
    tokens = torch.arange(int(lengths.sum()))
    nested = torch.nested.nested_tensor_from_jagged
    columns = {
        "uid": torch.arange(len(lengths)),
        "tokens": nested(tokens, offsets),
        "log_probs": nested(tokens.float(), offsets),
    }
    return TensorDict(columns, [len(lengths)])


ROWS = {"flat": flat_rows, "ragged": ragged_rows}


def values_of(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_nested and tensor.layout == torch.strided:  # TransferQueue's
        return torch.cat(tensor.unbind())
    return tensor.values() if tensor.is_nested else tensor


def cut(rows: TensorDict, start: int, stop: int) -> dict[str, torch.Tensor]:
    """Return a copy of some rows, with nested tensors as values and lengths because they cannot be sliced or joined."""
    pieces = {}
    for name, value in rows.items():
        if value.is_nested:
            offsets = value.offsets()[start : stop + 1]
            pieces[f"{name}.lengths"] = offsets.diff()
            pieces[name] = value.values()[offsets[0] : offsets[-1]].clone()
        else:
            pieces[name] = value[start:stop].clone()
    return pieces


def join(pieces: list[dict[str, torch.Tensor]]) -> TensorDict:
    columns = {
        name: torch.cat([piece[name] for piece in pieces]) if len(pieces) > 1 else pieces[0][name] for name in pieces[0]
    }
    for name in [name for name in columns if f"{name}.lengths" in columns]:
        offsets = torch.nn.functional.pad(columns.pop(f"{name}.lengths").cumsum(0), (1, 0))
        columns[name] = torch.nested.nested_tensor_from_jagged(columns[name], offsets)
    return TensorDict(columns, [len(columns["uid"])])


# ---- the workers


class Rank:
    """A process that creates rows and receives rows of others."""

    def __init__(self, buffers: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        self.client = BufferClient(buffers)

    def make(self, kind: str, rank: int, num_ranks: int, num_bytes: int) -> None:
        self.rows = ROWS[kind](rank, num_ranks, num_bytes)

    def warm(self, num_bytes: int) -> None:
        self.original = np.ones(num_bytes, np.uint8)
        self.copied = self.original.copy()

    def put(self, shard_id: str) -> ShardRef:
        return self.client.put(shard_id, to_columns(self.rows))

    def get(self, part: RankInput) -> None:
        self.received = to_batch(self.client.get(part))

    def send(self) -> Any:
        from verl.protocol import DataProto

        return self.rows if any(value.is_nested for value in self.rows.values()) else DataProto(batch=self.rows)

    def receive(self, rows: Any) -> None:
        self.received = rows if isinstance(rows, TensorDict) else rows.batch  # else a DataProto

    def put_keys(self, keys: list[str]) -> None:
        import transfer_queue

        transfer_queue.kv_batch_put(keys, PARTITION, self.rows)

    def get_keys(self, keys: list[str]) -> None:
        import transfer_queue

        self.received = transfer_queue.kv_batch_get(keys, PARTITION)

    def put_pieces(self, cuts: list[tuple[int, int]]) -> list[Any]:
        return [ray.put(cut(self.rows, start, stop)) for start, stop in cuts]

    def get_pieces(self, refs: list[Any]) -> None:
        self.received = join(ray.get(refs))

    def copy(self) -> None:
        np.copyto(self.copied, self.original)
        self.received = {}

    def do_nothing(self) -> None:
        self.received = {}

    def read(self) -> int:
        """Return a sum over all bytes, equal for equal rows."""
        raw = [values_of(tensor).contiguous().view(-1).view(torch.uint8).numpy() for tensor in self.received.values()]
        return sum(int(np.add.reduce(memory[: len(memory) // 8 * 8].view(np.uint64))) & (2**64 - 1) for memory in raw)

    def drop(self) -> None:
        del self.received


# ---- the contenders: each delivers the sources' rows to the targets and returns the objects that passed the driver


def deliver_ours(sources: list[Any], targets: list[Any]) -> list[Any]:
    shards = ray.get([source.put.remote(f"1/node/{rank}") for rank, source in enumerate(sources)])
    parts = split_evenly(shards, len(targets))
    ray.get([target.get.remote(part) for target, part in zip(targets, parts, strict=True)])
    return [shards, parts]


def deliver_verl(sources: list[Any], targets: list[Any]) -> list[Any]:
    from verl.protocol import BatchData

    sent = ray.get([source.send.remote() for source in sources])
    chunks = BatchData(BatchData(sent).concat()).chunk(len(targets))
    ray.get([target.receive.remote(chunk) for target, chunk in zip(targets, chunks, strict=True)])
    return [sent, chunks]


def parts_by_rank(num_sources: int, num_targets: int) -> list[RankInput]:
    """Return the rows of each target; the shards are named by the ranks of the sources."""
    counts = [NUM_ROWS * (rank + 1) // num_sources - NUM_ROWS * rank // num_sources for rank in range(num_sources)]
    return split_evenly([ShardRef(str(rank), "", count) for rank, count in enumerate(counts)], num_targets)


def deliver_transfer_queue(sources: list[Any], targets: list[Any]) -> list[Any]:
    cuts = [NUM_ROWS * rank // len(sources) for rank in range(len(sources) + 1)]
    put = [list(map(str, range(start, stop))) for start, stop in itertools.pairwise(cuts)]
    ray.get([source.put_keys.remote(keys) for source, keys in zip(sources, put, strict=True)])
    wanted = [
        [key for piece in part.slices for key in put[int(piece.shard.shard_id)][piece.index.start : piece.index.stop]]
        for part in parts_by_rank(len(sources), len(targets))
    ]
    ray.get([target.get_keys.remote(keys) for target, keys in zip(targets, wanted, strict=True)])
    return [put, wanted]


def deliver_ray_refs(sources: list[Any], targets: list[Any]) -> list[Any]:
    parts = parts_by_rank(len(sources), len(targets))
    wanted: dict[str, list[tuple[int, tuple[int, int]]]] = defaultdict(list)
    for target, part in enumerate(parts):
        for piece in part.slices:
            wanted[piece.shard.shard_id].append((target, (piece.index.start, piece.index.stop)))
    asked = [source.put_pieces.remote([rows for _, rows in wanted[str(rank)]]) for rank, source in enumerate(sources)]
    refs: list[list[Any]] = [[] for _ in targets]
    for rank, pieces in enumerate(ray.get(asked)):
        for (target, _), ref in zip(wanted[str(rank)], pieces, strict=True):
            refs[target].append(ref)
    ray.get([target.get_pieces.remote(pieces) for target, pieces in zip(targets, refs, strict=True)])
    return [[len(pieces) for pieces in refs]]


def deliver_memcpy(sources: list[Any], targets: list[Any]) -> list[Any]:
    ray.get([target.copy.remote() for target in targets])
    return []


def deliver_calls(sources: list[Any], targets: list[Any]) -> list[Any]:
    for group in (sources, targets):
        ray.get([rank.do_nothing.remote() for rank in group])
    return []


CONTENDERS: dict[str, Callable[[list[Any], list[Any]], list[Any]]] = {
    "ours": deliver_ours,
    "verl": deliver_verl,
    "transfer queue": deliver_transfer_queue,
    "ray refs": deliver_ray_refs,
    "memcpy": deliver_memcpy,
    "calls": deliver_calls,
}


# ---- measuring


def measure(
    ranks: list[Any], buffer: Any, kind: str, megabytes: int, layout: tuple[int, int], left_out: Collection[str]
) -> dict[str, Any]:
    """Return the medians of one layout by contender, and the times of its rounds."""
    sources, targets = ranks[: layout[0]], ranks[layout[0] : sum(layout)]
    if sum(layout) > NUM_RANKS:  # the same processes, each reading its neighbour's rows
        targets = ranks[1 : layout[1] + 1]
    num_bytes = megabytes * 10**6
    contenders = {
        name: each
        for name, each in CONTENDERS.items()
        if name not in left_out and (name, kind, megabytes) not in TOO_LARGE
    }
    ray.get([source.make.remote(kind, rank, layout[0], num_bytes) for rank, source in enumerate(sources)])
    ray.get([target.warm.remote(num_bytes // layout[1]) for target in targets])
    times: dict[str, list[tuple[float, float]]] = defaultdict(list)
    driver_bytes, sums = {}, {}
    for turn in range(ROUNDS[megabytes] + 2):
        for name, deliver in contenders.items():
            started = time.perf_counter()
            passed = deliver(sources, targets)
            delivered = time.perf_counter()
            sums[name] = ray.get([target.read.remote() for target in targets])
            read = time.perf_counter()
            if turn == 0:
                driver_bytes[name] = len(cloudpickle.dumps(passed))
            del passed
            ray.get([target.drop.remote() for target in targets])
            ray.get(buffer.free.remote("1/"))
            if name == "transfer queue":
                clear_transfer_queue()
            if turn >= 2:  # after two rounds the pages of all contenders are warm
                times[name].append((delivered - started, read - started))
    moved = [sums[name] for name in contenders if name not in ("memcpy", "calls")]
    assert all(each == moved[0] for each in moved), (kind, layout, sums)
    return {
        name: {
            "deliver_ms": statistics.median(deliver for deliver, _ in taken) * 1e3,
            "read_ms": statistics.median(read for _, read in taken) * 1e3,
            "driver_bytes": driver_bytes[name],
            "deliver_ms_per_round": [round(deliver * 1e3, 3) for deliver, _ in taken],
        }
        for name, taken in times.items()
    }


def clear_transfer_queue() -> None:
    import transfer_queue

    transfer_queue.kv_clear(list(map(str, range(NUM_ROWS))), PARTITION)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[1, 100], choices=ROUNDS)
    parser.add_argument("--kinds", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--quick", action="store_true", help="two sources and two targets, without verl")
    parser.add_argument("--output", type=Path, default=RESULTS, help="file whose other results stay")
    arguments = parser.parse_args()
    layouts, left_out = (LAYOUTS[:1], ("verl", "transfer queue")) if arguments.quick else (LAYOUTS, ())
    figures = json.loads(arguments.output.read_text()) if arguments.output.exists() else {"results": []}
    for megabytes, kind, layout in itertools.product(arguments.megabytes, arguments.kinds, layouts):
        with ranks_and_buffer(max(2, round(3.5 * megabytes / 1000)) * 10**9, "transfer queue" not in left_out) as (
            ranks,
            buffer,
        ):
            medians = measure(ranks, buffer, kind, megabytes, layout, left_out)
        ours = medians["ours"]["deliver_ms"]
        ratios = {name: row["deliver_ms"] / ours for name, row in medians.items() if name != "ours"}
        case = {"kind": kind, "megabytes": megabytes, "layout": list(layout)}
        show(case | medians | {"ratios": ratios})
        figures["results"] = [each for each in figures["results"] if not case.items() <= each.items()]
        figures["results"].append(case | medians | {"ratios": ratios})
    figures["machine"] = {"cores": psutil.cpu_count(), "memory_gb": round(psutil.virtual_memory().total / 1e9)}
    figures["results"].sort(key=lambda each: (each["megabytes"], each["kind"]))
    arguments.output.write_text(json.dumps(figures | {"targets": TARGETS}, indent=1) + "\n")


@contextmanager
def ranks_and_buffer(object_store_bytes: int, with_queue: bool) -> Iterator[tuple[list[Any], Any]]:
    """Start Ray for one layout, because neither its object store nor its processes release memory between layouts."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    path = [str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    ray.init(
        address="local",
        num_cpus=16,  # TransferQueue's actors ask for more than two
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=object_store_bytes,
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(path)}},
    )
    try:
        rank = ray.remote(num_cpus=0)(Rank)
        buffers = start_buffers("data-plane", BufferConfig(memory_gb=object_store_bytes / 1e9))
        with transfer_queue_of_ray() if with_queue else nullcontext():
            yield [rank.remote(buffers) for _ in range(NUM_RANKS)], next(iter(buffers.values()))
    finally:
        ray.shutdown()


@contextmanager
def transfer_queue_of_ray() -> Iterator[None]:
    """Start TransferQueue's controller and its two default storage units, which ranks then find by name."""
    import transfer_queue

    transfer_queue.init()
    try:
        yield
    finally:
        transfer_queue.close()


def show(result: dict[str, Any]) -> None:
    times = "  ".join(
        f"{name} {result[name]['deliver_ms']:.1f} ({result[name]['read_ms']:.1f})"
        for name in CONTENDERS
        if name in result
    )
    ratios = "  ".join(f"{name} {ratio:.2f}x" for name, ratio in result["ratios"].items())
    layout = "→".join(map(str, result["layout"]))
    print(
        f"{result['kind']} {result['megabytes']} MB {layout}: deliver (read) in ms: {times}; relative to ours: {ratios}"
    )


if __name__ == "__main__":
    main()
