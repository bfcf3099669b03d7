"""Which failures are retried, and from which commit."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from counting_run import begin, iterate, leave_flows, run_in, work_of

from embodyflow.config import RunConfig
from embodyflow.errors import (
    DamageError,
    NodeTimeoutError,
    RewardError,
    ShardLostError,
    WorkerLostError,
)
from embodyflow.orchestration.evaluation.between_iterations import BetweenIterations
from embodyflow.orchestration.run import recovery
from embodyflow.orchestration.run.iterations import nodes
from embodyflow.orchestration.run.iterations.turns import Turns
from embodyflow.record.run_folder import RunFolder
from embodyflow.workers.ray_nodes import ClusterWatch

LOST = WorkerLostError("a worker of the trainer group is gone")


@pytest.fixture(autouse=True)
def outside_of_flows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "get_run_logger", lambda: logging.getLogger("recovery"))
    monkeypatch.setattr(recovery, "FIRST_PAUSE_SECONDS", 0.0)


@pytest.mark.parametrize(
    ("error", "is_retryable"),
    [
        (LOST, True),
        (NodeTimeoutError("late"), True),
        (ShardLostError("1/rollout/0", "node"), True),
        (ExceptionGroup("nodes", [LOST, ExceptionGroup("more", [NodeTimeoutError("late")])]), True),
        (ExceptionGroup("nodes", [LOST, ValueError("a bug beside it")]), False),
        (ValueError("a bug"), False),
        (TimeoutError("a user's own"), False),
        (FloatingPointError("the loss is not finite"), False),
        (RewardError(7, "raised"), False),
    ],
)
def test_only_failures_of_infrastructure_are_retryable(error: Exception, is_retryable: bool) -> None:
    assert recovery.is_retryable(error) is is_retryable


class Step:
    """A step that fails a number of times with the same error, and counts attempts and recoveries."""

    def __init__(self, error: Exception, failures: int, limit: int = 3) -> None:
        self.error, self.failures, self.tried, self.recovered = error, failures, 0, 0
        cluster = SimpleNamespace(max_recoveries=limit)
        self.run: Any = SimpleNamespace(config=SimpleNamespace(cluster=cluster), folder=RunFolder(Path.cwd()))

    async def step(self) -> str:
        self.tried += 1
        if self.tried <= self.failures:
            raise self.error
        return "done"

    async def recover(self, run: Any) -> None:
        assert run is self.run
        self.recovered += 1

    def run_with_recovery(self, monkeypatch: pytest.MonkeyPatch) -> str:
        monkeypatch.setattr(recovery, "recover", self.recover)
        return asyncio.run(recovery.with_recovery(self.run, "it", self.step))


def test_each_failure_is_followed_by_recovery_and_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Step(LOST, failures=3)
    assert step.run_with_recovery(monkeypatch) == "done" and (step.tried, step.recovered) == (4, 3)


@pytest.mark.parametrize(("error", "failures", "tried"), [(LOST, 4, 4), (ValueError("a bug"), 1, 1)])
def test_permanent_failures_are_raised(
    error: Exception, failures: int, tried: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Step(error, failures)
    with pytest.raises(type(error)):
        step.run_with_recovery(monkeypatch)
    assert step.tried == tried


def test_the_newest_intact_commit_is_restored(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for iteration in range(4):
        (folder.checkpoints.begin(iteration) / "state").write_text(f"weights {iteration}")
        folder.checkpoints.commit(iteration, {}, keep=9)
    run: Any = SimpleNamespace(folder=folder, turns=Turns(0), evaluations=BetweenIterations())
    assert recovery.newest_intact_commit(run) == 3
    (folder.checkpoints.folder(3) / "state").write_text("weights 4")
    (folder.checkpoints.folder(2) / "state").unlink()
    assert recovery.newest_intact_commit(run) == 1
    assert folder.checkpoints.committed() == [0, 1]
    (folder.checkpoints.folder(0) / "commit.json").write_text("{")
    with pytest.raises(DamageError, match=r"iteration-000000/commit\.json is missing or damaged"):
        recovery.newest_intact_commit(run)


def test_rows_that_a_lost_version_sampled_are_made_again(
    tiny_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed run may train version 2 with another learning rate, so the rows that it sampled must not stay."""
    leave_flows(monkeypatch)
    config = tiny_config(f"run_root={tmp_path}", "run_id=mine", "iterations=3")

    async def live(run: Any) -> None:
        await begin(run)
        for index in (1, 2):
            await iterate(run, index)
            run.turns.mark_finished(index)
        await nodes._run_or_recall(work_of(run, 3), [])
        await run.stages.drain()

    async def resume(run: Any) -> None:
        assert await run.stages.recall(run.session, work_of(run, 3)) is not None
        assert await recovery.restore(run) == 1
        assert await run.stages.recall(run.session, work_of(run, 3)) is None

    asyncio.run(live(run_in(RunFolder.create(config), config)))
    folder = RunFolder(config.run_dir)
    folder.checkpoints.drop(2)  # as after a power failure before the checkpoint was on disk
    asyncio.run(resume(run_in(folder, config)))


@pytest.mark.parametrize(
    ("draining", "has_room", "leaves"),
    [({"used"}, True, True), ({"used"}, False, False), ({"another run's"}, True, False), (set(), True, False)],
)
def test_workers_leave_drained_nodes_for_others_with_room(
    monkeypatch: pytest.MonkeyPatch, draining: set[str], has_room: bool, leaves: bool
) -> None:
    monkeypatch.setattr(recovery, "has_room_without", lambda nodes, config: has_room)
    session = SimpleNamespace(uses="used".__eq__)
    run: Any = SimpleNamespace(cluster=ClusterWatch(frozenset(draining)), session=session, config=None)
    assert asyncio.run(recovery.must_leave_nodes(run)) is leaves
