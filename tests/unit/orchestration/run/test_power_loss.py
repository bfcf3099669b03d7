"""A power failure after any write: commits survive, and the resumed run gives the same result."""

import asyncio
import functools
import logging
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import prefect.runtime
import pytest
from counting_run import begin, iterate, run_in, work_of
from lossy_disk import Disk, Promise, Recorder, lay_out, trees_after

from embodyflow.config import RunConfig
from embodyflow.config.composition.compose import compose_config
from embodyflow.orchestration.request import request
from embodyflow.orchestration.run import recovery, stages
from embodyflow.orchestration.run.iterations import nodes
from embodyflow.orchestration.run.iterations.lookahead import Lookahead
from embodyflow.record.ledger import Ledger
from embodyflow.record.metrics_log import lasting_metrics
from embodyflow.record.run_folder import RunFolder


async def run_after(run: Any, last: int) -> None:
    """Run the iterations after ``last``."""

    async def in_turn(index: int) -> None:
        await run.turns.wait_to_roll_out(index)
        await iterate(run, index)
        run.turns.mark_finished(index)

    lookahead = Lookahead(in_turn, run.turns.max_staleness, run.config.iterations)
    for index in range(last + 1, run.config.iterations + 1):
        await lookahead.run_until(index, run.turns.last_finished)
    await run.stages.drain()


def outcome(run: Any) -> tuple[Any, ...]:
    assert run.session.state["updates"] == run.config.iterations, "an update was taken twice or never"
    ledger = Ledger(run.folder.ledger_path)
    assert ledger.digest() == run.stages.ledger.digest()
    return run.session.weights_digest, ledger.digest(), [lasting_metrics(each) for each in run.folder.metrics.read()]


async def resume(run: Any, promised: set[tuple[str, int]]) -> tuple[Any, ...]:
    """Resume a run as a new process does; check that everything promised before the failure is there."""
    last = await recovery.restore(run)
    assert last >= max((index for kind, index in promised if kind == "commit"), default=0)
    assert run.session.state["updates"] == last
    assert [record["iteration"] for record in run.folder.metrics.read()] == list(range(1, last + 1))
    for kind, index in promised:
        if kind == "stage" and index > last:
            assert await run.stages.recall(run.session, work_of(run, index)) is not None
    await run_after(run, last)
    return outcome(run)


@pytest.fixture
def in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace threads by inline calls, so that every run takes the same steps."""

    async def inline(do: Callable[..., Any], *args: Any) -> Any:
        await asyncio.sleep(0)
        return do(*args)

    monkeypatch.setattr(asyncio, "to_thread", inline)
    for module in (nodes, recovery, stages):
        monkeypatch.setattr(module, "get_run_logger", lambda: logging.getLogger("power"))


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, which is created and removed hundreds of times."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as folder:
        yield Path(folder)


def recorded_run(root: Path, config: RunConfig) -> tuple[Recorder, tuple[Any, ...]]:
    """Run to the end; return the recorded steps on disk and the outcome."""
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
            await run_after(run, 0)

        asyncio.run(live())
    return recorder, outcome(run)


@pytest.mark.parametrize(
    ("further", "num_promised"),
    [
        (("iterations=2",), 5),
        (("iterations=2", "rollout.max_staleness=1", "algorithm.old_log_probs=proximal"), 5),
        (("iterations=5", "trainer.iterations_per_commit=2"), 6 + 3),  # rows of iterations 1, 3 and 5
    ],
    ids=["synchronous", "ahead", "several iterations per commit"],
)
def test_a_power_failure_after_any_write(
    further: tuple[str, ...],
    num_promised: int,
    tiny_config: Callable[..., RunConfig],
    tmp_path: Path,
    in_memory: Path,
    in_one_thread: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = tiny_config(f"run_root={tmp_path}/disk/runs", "run_id=mine", "trainer.keep_checkpoints=1", *further)
    recorder, undisturbed = recorded_run(tmp_path / "disk", config)
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
                assert_resumes(in_memory / "disk", config, promised, undisturbed)
                shutil.rmtree(in_memory / "disk")
    assert len(promised) == num_promised and len(seen) > 200, len(seen)


class FlowRun:
    """A Prefect flow run in its first attempt or a later one."""

    def __init__(self, run_count: int) -> None:
        self.run_count, self.id = run_count, "0123456789abcdef"


def test_a_power_failure_before_the_first_commit(
    tmp_path: Path, in_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attempts of a flow run replace the folder of the attempt before, whatever a power failure left of it."""

    def begin_in(root: Path, run_count: int) -> RunFolder:
        monkeypatch.setattr(prefect.runtime, "flow_run", FlowRun(run_count))
        asked = request.bind_to_flow_run(request.RunRequest(run_id="mine", overrides=(f"run_root={root}/runs",)))
        return request.open_folder(asked, request.check(asked))

    recorder = Recorder(tmp_path)
    with recorder.recording():
        begin_in(tmp_path, run_count=1).metrics.append({"iteration": 0})
        begin_in(tmp_path, run_count=2)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    compose = functools.cache(lambda *words: compose_config(words))  # the words are always the same
    monkeypatch.setattr(request, "compose_config", lambda words, first_check=None: compose(*words))
    disk, rng, seen = Disk(), random.Random(0), set[int]()
    for step in recorder.steps:
        disk.take(step)
        for tree in trees_after(disk, rng, num_draws=1):
            if (key := hash(tuple(tree.items()))) not in seen:
                seen.add(key)
                lay_out(tree, in_memory / "disk")
                folder = begin_in(in_memory / "disk", run_count=3)
                assert {path.name for path in folder.path.iterdir()} == {"config.yaml", request.FLOW_RUN_FILE}
                assert folder.config()["run_id"] == "mine"
                shutil.rmtree(in_memory / "disk")
    assert len(seen) > 20, len(seen)


def assert_resumes(root: Path, config: RunConfig, promised: set[tuple[str, int]], undisturbed: tuple[Any, ...]) -> None:
    folder = RunFolder(root / "runs" / "mine")
    if not promised and not folder.checkpoints.committed():
        return  # nothing was committed, so the run starts from scratch
    assert RunFolder.open(str(root / "runs"), "mine").path == folder.path
    run = run_in(folder, config)
    assert asyncio.run(resume(run, promised)) == undisturbed
