"""How much does the memory of trainer and rollout worker grow while weights are published?

    python -m benchmarks.orchestration.weights_memory

SmolVLA at its published widths with 21 layers, 409 million random weights, in the workers and the buffer of a real run:
one trainer rank or two, and one rollout worker. The trainer publishes two versions, and the worker loads each. The
growth is the kernel's peak of resident memory (``VmHWM``: private and shared mapped pages; it is reset before) beyond
what the process holds at rest, as a multiple of the model's bytes. The script fails if a growth exceeds the limit.

``--code <name>`` names the code that is measured; the output keeps the figures of other names. To measure an earlier
commit, run this file with that commit's packages on ``PYTHONPATH``.
"""

import argparse
import asyncio
import ctypes
import json
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import ray

from benchmarks.commands import ROOT
from benchmarks.gpu import IMAGES, SMOLVLA, scratch
from benchmarks.report import write_report
from embodyflow.config.composition.compose import compose_config
from embodyflow.types import NodeOutput
from embodyflow.workers.calls import NodeWork
from embodyflow.workers.session import Session, open_session

RESULTS = ROOT / "benchmarks/results/weights_memory.json"
LIMIT = 1.3
VERSIONS = (1, 2)
SIZES = {**SMOLVLA, "num_layers": 21}
WORDS = (
    *(*IMAGES, "policy=tiny_smolvla", *scratch(SIZES), "policy.chunk_size=10", "policy.num_steps=10"),
    *("policy.train_expert_only=true", "rollout.num_groups=1", "rollout.envs_per_worker=8"),
    "cluster.start_timeout=600",
)


def settle(batch: Any, config: Any = None, *, worker: Any, **kwargs: Any) -> NodeOutput:
    """Give freed memory back to the system; return the number of bytes of the policy's weights."""
    ctypes.CDLL(None).malloc_trim(0)
    state = worker.policy.model.state_dict().values()
    return NodeOutput(None, info={"bytes": sum(value.numel() * value.element_size() for value in state)})


async def measure(num_ranks: int) -> dict[str, Any]:
    """Return the growth of rank 0 and of the rollout worker at each of two publications."""
    config = compose_config(["run_id=weights-memory", *WORDS, f"trainer.num_ranks={num_ranks}"])
    async with open_session(config) as session:
        pids = await session.processes()
        size = await _settle(session)
        growths: dict[str, list[float]] = {"trainer": [], "rollout": []}
        seconds: dict[str, list[float]] = {"trainer": [], "rollout": []}
        at_rest = {role: _resident(pids[f"{role}/0"], "VmRSS") for role in growths}
        for version in VERSIONS:
            work = {"trainer": session.publish_weights(version), "rollout": session.run_node(_work("rollout"))}
            for role, act in work.items():
                peak, took = await _peak(pids[f"{role}/0"], act)
                growths[role].append((peak - at_rest[role]) / size)
                seconds[role].append(took)
        digest = session.weights_digest
    return {"ranks": num_ranks, "model_bytes": size, "digest": digest, "growth": growths, "seconds": seconds}


async def _settle(session: Session) -> int:
    """Let all ranks settle; return the bytes of the model."""
    sizes = []
    for role in ("trainer", "rollout"):
        report = await session.run_node(_work(role))
        sizes.append(int(report.info["bytes"]))
    return max(sizes)


def _work(role: str) -> NodeWork:
    return NodeWork(f"settle_{role}", "benchmarks.orchestration.weights_memory:settle", role, iteration=1, config={})


async def _peak(pid: int, act: Coroutine[Any, Any, Any]) -> tuple[int, float]:
    """Return a process's peak memory in bytes while ``act`` is awaited, and its seconds."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak is what it holds now
    started = time.perf_counter()
    await act
    return _resident(pid, "VmHWM"), time.perf_counter() - started


def _resident(pid: int, field: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--code", default="frozen weights once", help="name of the code that is measured")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    found = json.loads(arguments.output.read_text())["comparisons"] if arguments.output.exists() else []
    others = [
        each for each in found if (each["code"], each["ranks"]) not in {(arguments.code, n) for n in arguments.ranks}
    ]
    measured = []
    for num_ranks in arguments.ranks:
        measured.append({"code": arguments.code, **asyncio.run(measure(num_ranks))})
        print(measured[-1], flush=True)
    write_report(arguments.output, ("torch", "ray"), [*others, *measured], limit=LIMIT)
    if any(growth > LIMIT for each in measured for role in each["growth"].values() for growth in role):
        sys.exit(f"not met: the growth must be at most {LIMIT} times the model")


if __name__ == "__main__":
    main()
