"""A run that returns to an earlier commit replays every iteration since once, and gives the same result."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from counting_run import begin, iterate, rows_of, run_after, run_in

from embodyflow.config import RunConfig
from embodyflow.data.rows_file import Journal
from embodyflow.errors import WorkerLostError
from embodyflow.orchestration.display import progress_log
from embodyflow.orchestration.evaluation import evaluation
from embodyflow.orchestration.run import recovery, stages, training
from embodyflow.orchestration.run.iterations import nodes
from embodyflow.record.checkpoints import Checkpoints
from embodyflow.record.run_folder import RunFolder

ITERATIONS, EVALUATED = 4, 2
LOST = WorkerLostError("a worker of the trainer group is gone")
Disturb = Callable[[Any, int], Awaitable[None]]


@pytest.fixture(autouse=True)
def outside_of_flows(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (nodes, recovery, stages, progress_log):
        monkeypatch.setattr(module, "get_run_logger", lambda: logging.getLogger("going back"))
    monkeypatch.setattr(recovery, "FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(training, "report_progress", lambda run, index: None)
    monkeypatch.setattr(training, "log_progress", lambda *_: None)


async def nothing(*_: object) -> None:
    pass


async def evaluate(run: Any, index: int, lane: object) -> dict[str, float]:
    return {"eval/greedy_success_rate": 0.5}


def config_of(tiny_config: Callable[..., RunConfig], root: Path, run_id: str) -> RunConfig:
    words = (f"run_root={root}", f"run_id={run_id}", f"iterations={ITERATIONS}", "trainer.keep_checkpoints=3")
    return tiny_config(*words, f"evaluation.every={EVALUATED}", "evaluation.video=false")


def new_run(config: RunConfig, monkeypatch: pytest.MonkeyPatch, disturb: Disturb) -> Any:
    """Return a run that is about to start; ``disturb`` is called at the start of each iteration and may raise."""
    run = run_in(RunFolder.create(config), config)
    run.session.mend = nothing

    async def run_iteration(run: Any, index: int) -> None:
        await disturb(run, index)
        await iterate(run, index)

    monkeypatch.setattr(training, "run_iteration", run_iteration)
    monkeypatch.setattr(evaluation, "evaluate", evaluate)
    monkeypatch.setattr(recovery, "record_processes", nothing)
    return run


async def finish(run: Any, first: int = 0) -> tuple[Any, ...]:
    """Train to the end; return the outcome."""
    await run_after(run, first)
    lines = [(line["iteration"], "loss" in line) for line in run.folder.metrics.read()]
    return run.session.state, run.session.weights_digest, run.stages.ledger.digest(), lines


def outcome_of(config: RunConfig, monkeypatch: pytest.MonkeyPatch, disturb: Disturb) -> tuple[Any, ...]:
    run = new_run(config, monkeypatch, disturb)

    async def whole() -> tuple[Any, ...]:
        await begin(run)
        return await finish(run)

    return asyncio.run(whole())


async def undisturbed(run: Any, index: int) -> None:
    pass


def once(index: int, do: Callable[[Any], None]) -> Disturb:
    """Return a function that acts at the first start of an iteration and then makes it fail."""
    waiting = [index]

    async def disturb(run: Any, at: int) -> None:
        if waiting == [at]:
            waiting.clear()
            await run.stages.drain()
            do(run)
            raise LOST

    return disturb


def damage(run: Any, *iterations: int) -> None:
    for each in iterations:
        (run.folder.checkpoints.folder(each) / "updates" / "0").write_text("7")


@pytest.mark.parametrize("damaged", [(2,), (3, 2)], ids=["the last", "the last two"])
def test_iterations_of_damaged_checkpoints_are_replayed(
    tiny_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: tuple[int, ...]
) -> None:
    straight = outcome_of(config_of(tiny_config, tmp_path, "straight"), monkeypatch, undisturbed)
    assert straight[0]["updates"] == ITERATIONS
    assert straight[3] == [(0, False), (1, True), (2, True), (2, False), (3, True), (4, True), (4, False)]
    disturb = once(damaged[0] + 1, lambda run: damage(run, *damaged))
    assert outcome_of(config_of(tiny_config, tmp_path, "disturbed"), monkeypatch, disturb) == straight


def test_a_new_process_replays_iterations_of_damaged_checkpoints(
    tiny_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tiny_config, tmp_path, "mine")
    straight = outcome_of(config, monkeypatch, undisturbed)
    run = run_in(RunFolder(config.run_dir), config)
    damage(run, 4, 3)

    async def in_a_new_process() -> tuple[Any, ...]:
        return await finish(run, await recovery.restore(run))

    assert asyncio.run(in_a_new_process()) == straight


@pytest.mark.parametrize("slow", range(ITERATIONS))
def test_a_commit_in_progress_completes_before_a_retry(
    tiny_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: int
) -> None:
    straight = outcome_of(config_of(tiny_config, tmp_path, "straight"), monkeypatch, undisturbed)
    commit_checkpoint = Checkpoints.commit

    def slowly(checkpoints: Checkpoints, iteration: int, *rest: Any) -> None:
        if iteration == slow:
            time.sleep(0.2)  # a large model, a slow disk
        commit_checkpoint(checkpoints, iteration, *rest)

    async def lose_the_next_weights(run: Any, index: int) -> None:
        publish = run.session.publish_weights

        async def lost(version: int) -> str:
            run.session.publish_weights = publish
            raise LOST

        if index == slow + 1 and not failed:
            failed.append(index)
            run.session.publish_weights = lost

    failed: list[int] = []
    monkeypatch.setattr(Checkpoints, "commit", slowly)
    assert outcome_of(config_of(tiny_config, tmp_path, "disturbed"), monkeypatch, lose_the_next_weights) == straight
    assert failed == [slow + 1]


def test_surplus_rows_are_kept_as_long_as_checkpoints(
    tiny_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tiny_config, tmp_path, "mine")
    outcome_of(config, monkeypatch, undisturbed)
    kept = sorted(path.relative_to(config.run_dir / "stages") for path in config.run_dir.glob("stages/*/*/*"))
    assert [str(path.parent.parent) for path in kept] == [f"iteration-00000{index}" for index in (2, 3, 4, 5)]
    assert {path.name for path in kept} == {"0.surplus"}


def test_half_a_rollout_is_kept_only_if_the_same_weights_play_the_rest(
    tiny_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process ends during a commit, after the next rollout has started; its successor may train other weights."""
    config = config_of(tiny_config, tmp_path, "mine")
    outcome_of(config, monkeypatch, undisturbed)
    stages_of = [config.run_dir / "stages" / f"iteration-{index:06d}" / "rollout" for index in (5, 6)]
    for index, folder in enumerate(stages_of, start=5):
        Journal(folder / "0.0.parts").append(rows_of(index, 0))
    Journal(stages_of[1] / "0.surplus").append(rows_of(6, 7))
    run = run_in(RunFolder(config.run_dir), config)
    assert asyncio.run(recovery.restore(run)) == 4
    kept = [{path.name for path in folder.iterdir()} for folder in stages_of]
    assert kept == [{"0.0.parts", "0.surplus"}, {"0.surplus"}]


def test_every_failed_write_is_reported(
    tiny_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_in(RunFolder(tmp_path), config_of(tiny_config, tmp_path, "mine"))

    def refuse(checkpoints: Checkpoints, iteration: int, *_: Any) -> None:
        raise OSError(f"no room for {iteration}")

    async def commit_twice() -> None:
        run.stages.commit(1, {}, asyncio.sleep(0))
        run.stages.commit(2, {}, asyncio.sleep(0))
        await run.stages.drain()

    monkeypatch.setattr(Checkpoints, "commit", refuse)
    with pytest.raises(OSError, match="no room for 1") as failure:
        asyncio.run(commit_twice())
    assert failure.value.__notes__ == ["and at the same time: no room for 2"]


def test_a_lost_trainer_hides_no_full_disk(
    tiny_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recovery mends the loss alone, so the other error must reach the user."""
    run = run_in(RunFolder(tmp_path), config_of(tiny_config, tmp_path, "mine"))

    def refuse(checkpoints: Checkpoints, iteration: int, *_: Any) -> None:
        raise OSError("no room")

    async def lose_trainer() -> None:
        raise LOST

    async def commit_twice() -> None:
        run.stages.commit(1, {}, lose_trainer())
        run.stages.commit(2, {}, asyncio.sleep(0))
        await asyncio.sleep(0.5)  # both have ended
        await run.stages.drain()

    monkeypatch.setattr(Checkpoints, "commit", refuse)
    with pytest.raises(OSError, match="no room") as failure:
        asyncio.run(commit_twice())
    assert failure.value.__notes__ == [f"and at the same time: {LOST}"]
