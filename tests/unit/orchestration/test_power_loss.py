"""Whatever a power failure leaves of a run, after whichever write: what counted counts, and the run ends the same."""

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

import pytest
from counting_run import begin, iterate, run_in, work_of
from lossy_disk import Disk, Promise, Recorder, lay_out, trees_after

from embodyflow.config import RunConfig
from embodyflow.config.compose import compose_config
from embodyflow.orchestration.request import request
from embodyflow.orchestration.run import nodes, recovery, stages
from embodyflow.orchestration.run.lookahead import Lookahead
from embodyflow.record.ledger import Ledger
from embodyflow.record.run_folder import RunFolder

ITERATIONS = 2


async def go_on(run: Any, last: int) -> None:
    """Do the iterations after ``last``."""

    async def in_turn(index: int) -> None:
        await run.turns.to_roll_out(index)
        await iterate(run, index)
        run.turns.finished(index)

    lookahead = Lookahead(in_turn, run.turns.max_staleness, ITERATIONS)
    for index in range(last + 1, ITERATIONS + 1):
        await lookahead.reach(index, run.turns.last_finished)
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


@pytest.mark.parametrize("ahead", [(), ("rollout.max_staleness=1", "algorithm.old_log_probs=proximal")])
def test_a_power_failure_after_any_write(
    ahead: tuple[str, ...],
    tiny_config: Callable[..., RunConfig],
    tmp_path: Path,
    in_memory: Path,
    in_one_thread: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = (f"run_root={tmp_path}/disk/runs", "run_id=mine", f"iterations={ITERATIONS}", "trainer.keep_checkpoints=1")
    config = tiny_config(*words, *ahead)
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


class FlowRun:
    """A Prefect flow run in its first attempt or a later one."""

    def __init__(self, run_count: int) -> None:
        self.run_count, self.id = run_count, "0123456789abcdef"


def test_a_power_failure_before_anything_counted(
    tmp_path: Path, in_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flow run makes its folder, is tried again and makes another: its next attempt begins, whatever was left."""

    def begin_in(root: Path, run_count: int) -> RunFolder:
        monkeypatch.setattr(request, "flow_run", FlowRun(run_count))
        asked = request.bind_to_flow_run(request.RunRequest(run_id="mine", overrides=(f"run_root={root}/runs",)))
        return request.open_folder(asked, request.check(asked))

    recorder = Recorder(tmp_path)
    with recorder.recording():
        begin_in(tmp_path, run_count=1).append_metrics({"iteration": 0})
        begin_in(tmp_path, run_count=2)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    compose = functools.cache(lambda *words: compose_config(words))  # the same words each time
    monkeypatch.setattr(request, "compose_config", lambda words: compose(*words))
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


def assert_goes_on(root: Path, config: RunConfig, promised: set[tuple[str, int]], undisturbed: tuple[Any, ...]) -> None:
    folder = RunFolder(root / "runs" / "mine")
    if not promised and not folder.committed():
        return  # nothing counted, and the run is started anew
    assert RunFolder.open(str(root / "runs"), "mine").path == folder.path
    run = run_in(folder, config)
    assert asyncio.run(mend(run, promised)) == undisturbed
