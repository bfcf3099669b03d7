"""Whatever a power failure leaves of a run, after whichever write: what counted counts, and the run ends the same."""

import asyncio
import hashlib
import json
import logging
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from lossy_disk import Disk, Promise, Recorder, lay_out, trees_after

from embodyflow.config import RunConfig
from embodyflow.data.plan import ShardRef
from embodyflow.data.rows_file import read_rows, write_rows
from embodyflow.data.tables import Table, digest_of
from embodyflow.engines.episode_history import EpisodeHistory
from embodyflow.engines.open_episodes import OpenEpisodes, OpenEpisodesFolder
from embodyflow.ledger import Ledger
from embodyflow.run_folder import RunFolder
from embodyflow.workers.calls import NodeCall
from embodyflow.workers.session import NodeReport, NodeWork
from flows import iteration, nodes, recovery, stages

ITERATIONS, NUM_GROUPS = 2, 2


class Ranks:
    """A rollout rank that writes the files a worker writes, and a trainer whose weights count their updates."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {"updates": 0, "rows": ""}
        self.weights_digest, self.policy_version = "", 0

    async def run_node(self, work: NodeWork, parents: object) -> NodeReport:
        call = NodeCall("rollout", "", work.iteration, seed=0, stage=work.stage, next_stage=work.next_stage)
        journal, surplus, folder = call.journal(0), call.surplus(0), call.run_folder
        assert journal is not None and surplus is not None and folder is not None
        self._step_environments(OpenEpisodesFolder(folder / "open_episodes", 0, keep=3), work.iteration)
        for group in range(len(journal.read()), NUM_GROUPS):
            journal.append(rows_of(work.iteration, group))
            await asyncio.sleep(0)
        waiting = [int(table["uid"][0]) for table in surplus[0].read()]
        rows = rows_of(work.iteration, *range(NUM_GROUPS), *waiting)
        surplus[1].replace(rows_of(work.iteration, 7))
        write_rows(Path(str(work.stage)) / "0.rows", rows)
        journal._path.unlink()
        return NodeReport(
            node_id="rollout",
            group="rollout",
            shards=(ShardRef(f"{work.iteration}/rollout/0", "here", len(rows["uid"])),),
            metrics={},
            info={},
            digests=(digest_of(rows),),
            seconds=0.0,
            logs=(),
        )

    def _step_environments(self, kept: OpenEpisodesFolder, index: int) -> None:
        num_steps = len(kept.read(index - 1).histories[0].actions) if index > 1 else 0
        history = EpisodeHistory(index, None, np.arange(num_steps + 2.0))
        kept.write(index, OpenEpisodes([history], np.ones(1, np.int64), np.zeros(1)))

    async def recall(self, work: NodeWork, kept: NodeReport) -> NodeReport:
        read_rows(Path(str(work.stage)) / "0.rows", kept.digests[0])
        return kept

    def train(self, report: NodeReport) -> None:
        read = hashlib.sha256("".join([self.state["rows"], *report.digests]).encode()).hexdigest()
        self.state = {"updates": self.state["updates"] + 1, "rows": read}

    async def publish_weights(self, version: int) -> str:
        self.weights_digest, self.policy_version = hashlib.sha256(json.dumps(self.state).encode()).hexdigest(), version
        await asyncio.sleep(0)
        return self.weights_digest

    async def save(self, folder: Path, *, whole: bool) -> None:
        for name, value in self.state.items():
            (folder / name).mkdir()
            (folder / name / "0").write_text(json.dumps(value))

    async def restore(self, folder: Path, reference: Path) -> None:
        self.state = {name: json.loads((folder / name / "0").read_text()) for name in self.state}

    async def free(self, prefix: str) -> None:
        await asyncio.sleep(0)


def rows_of(index: int, *groups: int) -> Table:
    uid = np.array([100 * index + group for group in groups])
    return {"uid": uid, "tokens": np.arange(len(uid) * 4).reshape(-1, 4) * index}


def run_in(folder: RunFolder, config: RunConfig) -> Any:
    kept = stages.Stages(folder, Ledger(folder.ledger_path))
    return SimpleNamespace(config=config, folder=folder, session=Ranks(), trackers=[], stages=kept)


def work_of(run: Any, index: int) -> NodeWork:
    here, there = (run.stages.place(each, "rollout") for each in (index, index + 1))
    return NodeWork("rollout", "", "rollout", index, stage=here, next_stage=there)


async def begin(run: Any) -> None:
    nodes.CURRENT_RUN.set(run)
    await iteration.hand_over(0)
    iteration.begin_to_count(0)


async def go_on(run: Any, last: int) -> None:
    """Do the iterations after ``last``, as :mod:`flows.iteration` does them."""
    nodes.CURRENT_RUN.set(run)
    for index in range(last + 1, ITERATIONS + 1):
        report = await nodes._run_or_recall(work_of(run, index), [])
        run.session.train(report)
        await iteration.commit(index, {"loss": 1 / index}, {"rollout": list(report.digests)})
    await run.stages.settle()


def outcome(run: Any) -> tuple[Any, ...]:
    assert run.session.state["updates"] == ITERATIONS, "an update was taken twice or never"
    ledger = Ledger(run.folder.ledger_path)
    assert ledger.digest() == run.stages._ledger.digest()
    return run.session.weights_digest, ledger.digest(), run.folder.metrics()


async def mend(run: Any, promised: set[tuple[str, int]]) -> tuple[Any, ...]:
    """Take a run up again, as a new process does; hold what is there against what counted."""
    last = await recovery.restore(run)
    assert last >= max((index for kind, index in promised if kind == "commit"), default=0)
    assert run.session.state["updates"] == last
    assert [record["iteration"] for record in run.folder.metrics()] == list(range(1, last + 1))
    for kind, index in promised:
        if kind == "stage" and index > last:
            assert await run.stages.recall(run.session, work_of(run, index)) is not None
    await go_on(run, last)
    return outcome(run)


@pytest.fixture
def in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """What flows do beside each other is done in turns, the same each time."""

    async def inline(do: Callable[..., Any], *args: Any) -> Any:
        await asyncio.sleep(0)
        return do(*args)

    monkeypatch.setattr(asyncio, "to_thread", inline)
    for module in (nodes, recovery, stages):
        monkeypatch.setattr(module, "get_run_logger", lambda: logging.getLogger("power"))


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A folder that is made and removed fast, hundreds of times."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as folder:
        yield Path(folder)


def lived(root: Path, config: RunConfig) -> tuple[Recorder, tuple[Any, ...]]:
    """Return all steps of a run from its first to its last, and what came of it."""
    root.mkdir()
    recorder, append = Recorder(root), Ledger.append

    def noted(ledger: Ledger, kind: str, index: int, facts: dict[str, Any]) -> None:
        append(ledger, kind, index, facts)
        recorder.promise((kind, index))

    with pytest.MonkeyPatch.context() as patch, recorder.recording():
        patch.setattr(Ledger, "append", noted)
        run = run_in(RunFolder.create(config), config)

        async def live() -> None:
            await begin(run)
            await go_on(run, 0)

        asyncio.run(live())
    return recorder, outcome(run)


def test_a_power_failure_after_any_write(
    tiny_config: Callable[..., RunConfig],
    tmp_path: Path,
    in_memory: Path,
    in_one_thread: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = (f"run_root={tmp_path}/disk/runs", "run_id=mine", f"iterations={ITERATIONS}", "trainer.keep_checkpoints=1")
    config = tiny_config(*words)
    recorder, undisturbed = lived(tmp_path / "disk", config)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    disk, rng, promised, seen = Disk(), random.Random(0), set[tuple[str, int]](), set[int]()
    for step in recorder.steps:
        disk.take(step)
        if isinstance(step, Promise):
            promised.add(step.what)
        for tree in trees_after(disk, rng, num_draws=2):
            key = hash((frozenset(promised), *tree.items()))
            if key not in seen:
                seen.add(key)
                lay_out(tree, in_memory / "disk")
                assert_goes_on(in_memory / "disk", config, promised, undisturbed)
                shutil.rmtree(in_memory / "disk")
    assert len(promised) == 2 * ITERATIONS + 1 and len(seen) > 200, len(seen)


def assert_goes_on(root: Path, config: RunConfig, promised: set[tuple[str, int]], undisturbed: tuple[Any, ...]) -> None:
    folder = RunFolder(root / "runs" / "mine")
    if not promised and not folder.committed():
        return  # nothing counted, and the run is started anew
    assert RunFolder.open(str(root / "runs"), "mine").path == folder.path
    run = run_in(folder, config)
    assert asyncio.run(mend(run, promised)) == undisturbed
