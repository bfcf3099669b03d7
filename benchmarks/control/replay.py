"""A replay buffer of a million transitions of HalfCheetah: memory, disk, and time to append, draw, commit and reopen.

    python -m benchmarks.control.replay

Transitions are random numbers, appended 1 000 at a time with a commit after each, as in a run with iterations of 1 000
steps. A batch has 256 transitions. Memory is the process's own (``RssAnon``): pages of mapped files are the cache of
the system. CPU seconds are the process's own. Writes ``benchmarks/results/replay.json``.
"""

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.commands import ROOT
from embodyflow.seeding import derive_rng
from embodyflow.training.off_policy.replay.replay_buffer import ReplayBuffer, Shape

RESULTS = ROOT / "benchmarks/results/replay.json"
SHAPE, TOTAL, PART, BATCH, DRAWS = Shape(1, 17, 6), 1_000_000, 1_000, 256, 200


def anonymous_mb() -> float:
    """Return the process's own memory in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1e3


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the CPU seconds of a call, and what it returns."""
    started = time.process_time()
    result = work()
    return time.process_time() - started, result


def transitions(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return transitions of random numbers."""
    return {
        "state": rng.standard_normal((PART, SHAPE.state_dim), np.float32),
        "action": rng.random((PART, SHAPE.action_dim), np.float32),
        "reward": rng.standard_normal(PART, np.float32),
        "next_state": rng.standard_normal((PART, SHAPE.state_dim), np.float32),
        "terminated": np.zeros(PART, np.bool_),
        "truncated": np.arange(PART) == PART - 1,
    }


def main() -> None:
    rng = derive_rng("replay")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "replay")
        buffer = ReplayBuffer.create(folder, SHAPE, TOTAL)
        appends, commits, memory = [], [], []
        for part in range(TOTAL // PART):
            columns = transitions(rng)
            appends.append(timed(lambda columns=columns: buffer.append(columns))[0])  # type: ignore[misc]
            seconds, state = timed(buffer.commit)
            commits.append(seconds)
            if part % 100 == 99:
                buffer.sample(rng, BATCH, 1, 0.99)
                memory.append(round(anonymous_mb(), 1))
        draws = {
            steps: statistics.median(timed(lambda n=steps: buffer.sample(rng, BATCH, n, 0.99))[0] for _ in range(DRAWS))  # type: ignore[misc]
            for steps in (1, 3)
        }
        size = sum(path.stat().st_size for path in folder.iterdir())
        reopening, again = timed(lambda: ReplayBuffer.open(folder, SHAPE, TOTAL, state))
        same = all(
            a.equal(b)
            for a, b in zip(
                buffer.sample(derive_rng(1), BATCH, 3, 0.99).tensors,
                again.sample(derive_rng(1), BATCH, 3, 0.99).tensors,
                strict=True,
            )
        )
    facts = {
        "cpus": os.cpu_count(),
        "transitions": len(again),
        "disk_mb": round(size / 1e6, 1),
        "anonymous_mb_each_100_000": memory,
        "append_cpu_microseconds_per_transition": round(statistics.median(appends) / PART * 1e6, 3),
        "commit_cpu_milliseconds": round(statistics.median(commits) * 1e3, 2),
        "batch_of_256_cpu_milliseconds": {str(steps): round(seconds * 1e3, 2) for steps, seconds in draws.items()},
        "reopen_cpu_seconds": round(reopening, 2),
        "same_draws_after_reopening": same,
    }
    RESULTS.write_text(json.dumps(facts, indent=1) + "\n")
    print(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
