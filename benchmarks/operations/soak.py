"""Five hundred iterations of a synthetic pipeline: does memory stay constant?

Run ``python benchmarks/operations/soak.py`` (a minute). In each iteration two source ranks put rows, two target ranks
read them balanced by tokens and put the transformed rows, these are read, and the iteration is freed. The buffer's
limit is low enough to spill some shards of every iteration. The script reports the growth of the resident memory of
driver and buffer after the first 50 iterations, and everything that is left at the end.
"""

import argparse
import json
import os
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray

from benchmarks.commands import ROOT
from embodyflow.config.buffer import BufferConfig
from embodyflow.data.batches import to_batch, to_columns
from embodyflow.data.metrics import to_floats
from embodyflow.data.plans.balance import balance
from embodyflow.data.plans.partition import attention_cost
from embodyflow.data.plans.row_plan import RankInput, ShardRef, split_evenly
from embodyflow.data.ragged import Ragged
from embodyflow.data.tables import num_rows_of
from embodyflow.workers.rows.buffer_client import BufferClient
from embodyflow.workers.rows.buffers import start_buffers

RESULTS = ROOT / "benchmarks" / "results" / "soak.json"
WARM_UP = 50  # iterations
TARGET_GROWTH = 0.02
NUM_ROWS = 64  # per source rank


class Rank:
    """A worker of either group."""

    def __init__(self, buffers: dict[str, Any]) -> None:
        self.client = BufferClient(buffers)

    def generate(self, shard_id: str, seed: int) -> tuple[ShardRef, list[int]]:
        generator = np.random.default_rng(seed)
        lengths = np.maximum(generator.lognormal(7.0, 0.5, NUM_ROWS), 1).astype(np.int64)
        rows = {
            "uid": np.arange(NUM_ROWS),
            "image": generator.integers(0, 255, (NUM_ROWS, 64, 64, 3), np.uint8),
            "tokens": Ragged(np.arange(lengths.sum()), lengths),
        }
        return self.client.put(shard_id, rows), lengths.tolist()

    def transform(self, shard_id: str, part: RankInput) -> ShardRef:
        batch = to_batch(self.client.get(part))
        batch["advantages"] = batch["image"].float().mean((1, 2, 3))
        return self.client.put(shard_id, to_columns(batch))

    def count(self, part: RankInput) -> int:
        return num_rows_of(self.client.get(part))


def iterate(index: int, ranks: list[Any], buffer: Any, host: str) -> None:
    sources, targets = ranks[:2], ranks[2:]
    made = ray.get([rank.generate.remote(f"{index}/rollout/{i}", 2 * index + i) for i, rank in enumerate(sources)])
    shards = [shard for shard, _ in made]
    costs = attention_cost(np.concatenate([lengths for _, lengths in made]))
    parts = balance(shards, costs, [host, host])
    shards = ray.get([rank.transform.remote(f"{index}/advantage/{i}", parts[i]) for i, rank in enumerate(targets)])
    counts = ray.get([rank.count.remote(part) for rank, part in zip(targets, split_evenly(shards, 2), strict=True)])
    assert sum(counts) == 2 * NUM_ROWS
    assert ray.get(buffer.free.remote(f"{index}/")) == 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=500)
    iterations = parser.parse_args().iterations
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    root = str(Path(__file__).resolve().parents[2])
    ray.init(
        address="local",
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=10**8,
        runtime_env={"env_vars": {"PYTHONPATH": root}},
    )
    [(host, buffer)] = start_buffers("soak", BufferConfig(memory_gb=0.006)).items()
    rank = ray.remote(num_cpus=0)(Rank)
    ranks = [rank.remote({host: buffer}) for _ in range(4)]
    iterate(0, ranks, buffer, host)
    location = ray.get(ranks[0].generate.remote("0/rollout/0", 0))[0].location
    ray.get(buffer.free.remote("0/"))
    processes = {"driver": psutil.Process(), "buffer": psutil.Process(location.pid)}
    resident: dict[str, list[int]] = {name: [] for name in processes}
    for index in range(1, iterations + 1):
        iterate(index, ranks, buffer, host)
        for name, process in processes.items():
            resident[name].append(process.memory_info().rss)
    growth = {
        name: statistics.median(taken[-20:]) / statistics.median(taken[WARM_UP : WARM_UP + 20]) - 1
        for name, taken in resident.items()
    }
    left = to_floats(ray.get(buffer.metrics.remote()))
    files = [name for name in os.listdir(f"/proc/{location.pid}/fd") if is_spill_file(location.pid, name)]
    result = {
        "iterations": iterations,
        "growth": growth,
        "target_growth": TARGET_GROWTH,
        "resident_mb": {name: round(taken[-1] / 1e6, 1) for name, taken in resident.items()},
        "spill_files_left": len(files),
        "object_store_used": ray.cluster_resources()["object_store_memory"]
        - ray.available_resources()["object_store_memory"],
        **left,
    }
    ray.shutdown()
    print(json.dumps(result, indent=1))
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    assert left["buffer/num_shards"] == left["buffer/spilled_bytes"] == 0 and not files


def is_spill_file(pid: int, descriptor: str) -> bool:
    return os.readlink(f"/proc/{pid}/fd/{descriptor}").startswith("/tmp/#")


if __name__ == "__main__":
    main()
