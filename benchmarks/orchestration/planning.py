"""The time to plan a redistribution of rows, and the balance of the plan.

Run ``python benchmarks/orchestration/planning.py`` (a minute or two; needs ``uv pip install verl transformers``).
Lengths are log-normal, costs those of attention. The peer is verl's Karmarkar–Karp in plain Python, which does not know
Ray nodes; cases for which it would take minutes leave it out. Contenders take turns; times are medians in milliseconds.
``--quick`` measures the first two cases.
"""

import argparse
import gc
import json
import statistics
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from verl.utils.seqlen_balancing import karmarkar_karp as verl_karmarkar_karp

from benchmarks.commands import ROOT
from embodyflow.data.plans.balance import balance
from embodyflow.data.plans.partition import attention_cost, imbalance
from embodyflow.data.plans.row_plan import RankInput, ShardRef

RESULTS = ROOT / "benchmarks" / "results" / "planning.json"


@dataclass(frozen=True)
class Case:
    """A redistribution from source ranks to target ranks, both spread over the nodes.

    Attributes:
        rows: Number of rows.
        sources: Number of source ranks.
        targets: Number of target ranks.
        nodes: Number of Ray nodes.
        rounds: Number of rounds.
        peer: True to measure the peer, too.
    """

    rows: int
    sources: int
    targets: int
    nodes: int
    rounds: int
    peer: bool


CASES = (
    Case(10_000, 8, 8, 1, 9, True),
    Case(10_000, 8, 8, 4, 9, True),
    Case(10_000, 64, 64, 8, 3, True),
    Case(1_000_000, 1024, 1024, 1, 3, False),
    Case(1_000_000, 1024, 1024, 128, 3, False),
    Case(1_000_000, 512, 1024, 64, 3, False),
)


def host(rank: int, num_ranks: int, num_nodes: int) -> str:
    return f"n{rank * num_nodes // num_ranks}"


def loads_of(parts: list[RankInput], first_row: dict[str, int], costs: np.ndarray[Any, Any]) -> list[float]:
    return [
        sum(
            float(costs[first_row[p.shard.shard_id] : first_row[p.shard.shard_id] + p.shard.num_rows][p.index].sum())
            for p in part.slices
        )
        for part in parts
    ]


def measure(case: Case) -> dict[str, Any]:
    """Return times, also by round, imbalances and the fraction of rows that move to another node."""
    costs = attention_cost(np.random.default_rng(0).lognormal(6.0, 0.5, case.rows).astype(np.int64))
    bounds = [case.rows * rank // case.sources for rank in range(case.sources + 1)]
    shards = [
        ShardRef(str(rank), host(rank, case.sources, case.nodes), bounds[rank + 1] - bounds[rank])
        for rank in range(case.sources)
    ]
    hosts = [host(rank, case.targets, case.nodes) for rank in range(case.targets)]
    times, result = defaultdict(list), {}
    for _ in range(case.rounds):
        gc.collect()  # else the peer, which makes many objects, has a full collection in every other round
        started = time.perf_counter()
        parts = balance(shards, costs, hosts)
        times["ours_ms"].append(time.perf_counter() - started)
        if case.peer:
            gc.collect()
            started = time.perf_counter()
            partition = verl_karmarkar_karp(costs.astype(int).tolist(), case.targets, equal_size=False)
            times["verl_ms"].append(time.perf_counter() - started)
            result["verl_imbalance"] = imbalance([costs[part].sum() for part in partition])
    first_row = {shard.shard_id: bound for shard, bound in zip(shards, bounds, strict=False)}
    result["ours_imbalance"] = imbalance(loads_of(parts, first_row, costs))
    away = [
        len(costs[: p.shard.num_rows][p.index])
        for part, to in zip(parts, hosts, strict=True)
        for p in part.slices
        if p.shard.host != to
    ]
    result["ours_moved_share"] = sum(away) / case.rows
    medians = {name: round(statistics.median(taken) * 1e3, 1) for name, taken in times.items()}
    by_round = {f"{name}_per_round": [round(each * 1e3, 2) for each in taken] for name, taken in times.items()}
    return medians | {name: float(f"{value:.3g}") for name, value in result.items()} | by_round


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only the first two cases")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    results = []
    for case in CASES[:2] if arguments.quick else CASES:
        results.append(asdict(case) | measure(case))
        print(json.dumps(results[-1]))
    arguments.output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
