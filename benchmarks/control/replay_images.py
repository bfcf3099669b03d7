"""A replay buffer of 10⁵ transitions with two 128-pixel cameras: memory, disk, and time to append, draw and reopen.

    python -m benchmarks.control.replay_images
    python -m benchmarks.control.replay_images --transitions 10000

Images are random bytes, the same in each commit. Episodes have 50 decisions, and a commit follows 20 of them, 1 000
transitions. A batch has 256 transitions, and so 512 frames. Memory is that of the process: its own (``RssAnon``) and
the pages of files that it has mapped (``RssFile``). Each time is given twice, by the clock and as CPU time of the
process. The buffer is reopened at the end, with all digests: once after the system was asked to forget the files' pages
(cold), and once more (warm). It takes 10 GB on the disk. With ``--folder`` it stays there, and a later call with the
same folder only reopens it. Writes ``benchmarks/results/replay_images.json``.
"""

import argparse
import hashlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.commands import ROOT
from embodyflow.seeding import derive_rng
from embodyflow.training.off_policy.replay.image_replay import ImageReplayBuffer
from embodyflow.training.off_policy.replay.replay_buffer import Shape
from embodyflow.training.off_policy.replay.segments import STATE_FILE, state_in

RESULTS = ROOT / "benchmarks/results/replay_images.json"
SIDE, TOTAL, EPISODES, DECISIONS, BATCH, DRAWS = 128, 100_000, 20, 50, 256, 30
SHAPE = Shape(1, 30, 20, {"front": (SIDE, SIDE, 3), "wrist": (SIDE, SIDE, 3)})
IMAGES_BYTES = len(SHAPE.cameras) * SIDE * SIDE * 3


def memory_mb() -> dict[str, float]:
    """Return the process's own memory and its pages of mapped files in MB."""
    lines = [line.split() for line in Path("/proc/self/status").read_text().splitlines()]
    found = {line[0].rstrip(":"): int(line[1]) / 1e3 for line in lines if line[0] in ("RssAnon:", "RssFile:")}
    return {name: round(value, 1) for name, value in found.items()}


Seconds = tuple[float, float]
"""Seconds of a call by the clock, and its CPU seconds."""


def timed(work: Callable[[], Any]) -> tuple[Seconds, Any]:
    """Return the seconds of a call, and what it returns."""
    started, computed = time.perf_counter(), time.process_time()
    result = work()
    return (time.perf_counter() - started, time.process_time() - computed), result


def middle(calls: Sequence[Seconds]) -> dict[str, float]:
    """Return the medians of the times of calls in milliseconds."""
    clock, cpu = (round(statistics.median(each) * 1e3, 1) for each in zip(*calls, strict=True))
    return {"clock": clock, "cpu": cpu}


def episodes(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return the decisions of episodes with random numbers and images."""
    count = EPISODES * DECISIONS
    frame = np.arange(count) + np.arange(count) // DECISIONS  # an episode has one frame more than decisions
    is_last = np.arange(count) % DECISIONS == DECISIONS - 1
    size = (count + EPISODES, SIDE, SIDE, 3)
    return {
        "state": rng.standard_normal((count, SHAPE.state_dim), np.float32),
        "action": rng.random((count, SHAPE.action_dim), np.float32),
        "reward": is_last.astype(np.float32),
        "next_state": rng.standard_normal((count, SHAPE.state_dim), np.float32),
        "terminated": is_last,
        "truncated": np.zeros(count, np.bool_),
        "frame": frame,
        "next_frame": frame + 1,
        **{f"frames.{camera}": rng.integers(0, 256, size, np.uint8) for camera in SHAPE.cameras},
    }


def on_disk(folder: Path) -> int:
    """Return the bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def forget_pages(folder: Path) -> None:
    """Ask the system to drop the files' pages from its cache."""
    for path in folder.rglob("*.*s"):
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def digest(buffer: ImageReplayBuffer) -> str:
    """Return the SHA-256 of a batch."""
    batch = buffer.sample(derive_rng(1), BATCH, 3, 0.99)
    images = [*batch.images.values(), *batch.next_images.values()]
    return hashlib.sha256(b"".join(each.numpy().tobytes() for each in (*batch.tensors, *images))).hexdigest()


def drawn(buffer: ImageReplayBuffer) -> dict[str, Any]:
    """Return the time of a draw, and the process's memory after some of them."""
    rng = derive_rng("draws")
    draws = [timed(lambda: buffer.sample(rng, BATCH, 1, 0.99))[0] for _ in range(DRAWS)]
    return {"transitions": len(buffer), "draw_milliseconds": middle(draws), "memory_mb": memory_mb()}


def grown(folder: Path, total: int) -> list[dict[str, Any]]:
    """Append and commit transitions; return what is measured at powers of ten."""
    buffer, columns = ImageReplayBuffer.create(folder, SHAPE, TOTAL), episodes(derive_rng("replay images"))
    appends, commits, points, before = [], [], [], 0
    while len(buffer) < total:
        appends.append(timed(lambda: buffer.append(columns))[0])
        commits.append(timed(buffer.commit)[0])
        size = on_disk(folder)
        if len(buffer) in (10**3, 10**4, 10**5):
            times = {"append_milliseconds": middle(appends), "commit_milliseconds": middle(commits)}
            written = {"written_mb_by_a_commit": round((size - before) / 1e6, 1), "disk_mb": round(size / 1e6, 1)}
            points.append(drawn(buffer) | times | written)
            print(json.dumps(points[-1]), flush=True)
        before = size
    return points


def reopened(folder: Path) -> dict[str, Any]:
    """Return the times to reopen a buffer, and what is measured then."""
    state = state_in(folder)

    def reopen() -> ImageReplayBuffer:
        return ImageReplayBuffer.open(folder, SHAPE, TOTAL, state)

    forget_pages(folder)
    (cold, first), (warm, second) = timed(reopen), timed(reopen)
    per_transition = on_disk(folder) / len(second)
    return drawn(second) | {
        "reopen_seconds": {
            name: {"clock": round(clock, 2), "cpu": round(cpu, 2)}
            for name, (clock, cpu) in (("cold", cold), ("warm", warm))
        },
        "same_draws_after_reopening": digest(first) == digest(second),
        "bytes_per_transition": round(per_transition),
        "bytes_of_two_images_per_camera": 2 * IMAGES_BYTES,
        "times_fewer_bytes": round(2 * IMAGES_BYTES / per_transition, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a replay buffer with images.")
    parser.add_argument("--transitions", type=int, default=TOTAL, help="a power of ten, from 1000 to 100000")
    parser.add_argument("--folder", type=Path, help="where the buffer stays; null removes it in the end")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.folder or Path(temporary, "replay")
        if (folder / STATE_FILE).exists() and state_in(folder)["length"] == chosen.transitions:
            points = json.loads(RESULTS.read_text())["points"]
        else:
            points = grown(folder, chosen.transitions)
        facts = {"cpus": os.cpu_count(), "points": points, "reopened": reopened(folder)}
    RESULTS.write_text(json.dumps(facts, indent=1) + "\n")
    print(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
