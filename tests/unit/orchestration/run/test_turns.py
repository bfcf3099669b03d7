"""Iterations in flight: what they wait for, and that timing never changes a number."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from counting_run import begin, iterate, leave_flows, run_after, run_in
from hypothesis import given
from hypothesis import strategies as st

from embodyflow.config import RunConfig
from embodyflow.data.plans.row_plan import ShardRef
from embodyflow.data.segment import Segment
from embodyflow.errors import ShardLostError, WorkerLostError
from embodyflow.orchestration.run import recovery, training
from embodyflow.orchestration.run.iterations.graph_run import GraphRun, rollout_nodes
from embodyflow.orchestration.run.iterations.lookahead import Lookahead
from embodyflow.orchestration.run.iterations.turns import Turns
from embodyflow.record.metrics_log import lasting_metrics
from embodyflow.record.run_folder import RunFolder
from embodyflow.workers.calls import NodeReport, NodeWork
from pipelines import Node, NodeRole, NodeType, TaskGraph, load_pipeline

ITERATIONS = 7
LOST = WorkerLostError("a worker of the trainer group is gone")
GRAPH = load_pipeline(name="embodied_grpo")


def stage_path(index: int, node_id: str) -> str:
    return f"run/stages/iteration-{index}/{node_id}"


class Lanes:
    """Runs iterations whose nodes take some steps of the event loop, and logs their starts and ends in order."""

    def __init__(self, max_staleness: int, steps: Callable[[str], int], graph: TaskGraph = GRAPH) -> None:
        self.turns, self._steps, self._graph = Turns(max_staleness), steps, graph
        self.events: list[tuple[str, str, int]] = []
        self.versions: dict[int, int] = {}
        self.finished: list[int] = []

    async def run_all(self) -> None:
        lookahead = Lookahead(self._iterate, self.turns.max_staleness, ITERATIONS)
        for index in range(1, ITERATIONS + 1):
            await lookahead.run_until(index, self.turns.last_finished)

    async def _iterate(self, index: int) -> None:
        await self.turns.wait_to_roll_out(index)
        await self._run_graph(index)
        self.turns.mark_finished(index)

    async def _run_graph(self, index: int) -> None:
        await GraphRun(self._graph, index, self._run_node, self._publish, stage_path, self.turns).run()
        self.finished.append(index)

    async def _publish(self) -> None:
        raise AssertionError("no weights were lost")

    async def _run_node(self, work: NodeWork, parents: list[NodeReport], *, retries: int) -> NodeReport:
        self.events.append(("began", work.node_id, work.iteration))
        if work.node_id == "rollout":
            assert work.policy_version is not None
            self.versions[work.iteration] = work.policy_version
            assert work.policy_version <= max(self.finished, default=0), "these weights do not exist yet"
        for _ in range(self._steps(work.node_id)):
            await asyncio.sleep(0)
        self.events.append(("ended", work.node_id, work.iteration))
        nothing: dict[str, Any] = {"metrics": {}, "info": {}, "digests": (), "seconds": 0.0, "logs": ()}
        return NodeReport(node_id=work.node_id, group="", shards=(), **nothing)

    def at(self, what: str, node_id: str, index: int) -> int:
        return self.events.index((what, node_id, index))


@given(st.integers(0, 3), st.randoms(use_true_random=False))
def test_timing_does_not_change_the_policy_versions(max_staleness: int, rng: random.Random) -> None:
    lanes = Lanes(max_staleness, lambda node_id: rng.randrange(6))
    asyncio.run(lanes.run_all())
    assert lanes.versions == {index: max(index - 1 - max_staleness, 0) for index in range(1, ITERATIONS + 1)}
    assert lanes.finished == [*range(1, ITERATIONS + 1)]
    for index in range(2, ITERATIONS + 1):  # one rollout and one training iteration at a time
        assert lanes.at("ended", "rollout", index - 1) < lanes.at("began", "rollout", index)
        assert lanes.at("ended", "train_actor", index - 1) < lanes.at("began", "old_log_prob", index)


class Segments(Lanes):
    """Lanes whose rollouts go on with newer weights, and whose workers also evaluate every version."""

    def __init__(self, max_staleness: int, steps: Callable[[str], int]) -> None:
        super().__init__(max_staleness, steps)
        self.turns = Turns(max_staleness, swaps_weights=True)
        self.segments: list[tuple[int, int]] = []
        self._workers = asyncio.Lock()

    async def _iterate(self, index: int) -> None:
        await self.turns.wait_to_roll_out(index)
        await self._run_graph(index)
        async with self._workers:
            await asyncio.sleep(0)
        self.turns.mark_finished(index)

    async def _run_node(self, work: NodeWork, parents: list[NodeReport], *, retries: int) -> NodeReport:
        if work.node_id != "rollout":
            return await super()._run_node(work, parents, retries=retries)
        async with self._workers:
            report = await super()._run_node(work, parents, retries=retries)
        assert work.policy_version is not None
        self.segments.append((work.iteration, work.policy_version))
        is_last = work.segment is None or work.segment.is_last
        return replace(report, shards=(ShardRef("0", "here", 1),) if is_last else (), seconds=1.0)


@given(st.integers(0, 3), st.randoms(use_true_random=False))
def test_timing_does_not_change_the_versions_of_segments(max_staleness: int, rng: random.Random) -> None:
    lanes = Segments(max_staleness, lambda node_id: rng.randrange(6))
    asyncio.run(asyncio.wait_for(lanes.run_all(), 60.0))
    assert lanes.finished == [*range(1, ITERATIONS + 1)]
    for index in range(1, ITERATIONS + 1):
        versions = [version for iteration, version in lanes.segments if iteration == index]
        assert versions == [*range(max(index - 1 - max_staleness, 0), index)]
    for version in range(ITERATIONS):  # the oldest iteration first, so that the trainer gets its rows first
        iterations = [iteration for iteration, used in lanes.segments if used == version]
        assert iterations == sorted(iterations)


def test_the_segments_of_a_version_run_while_the_trainer_works() -> None:
    lanes = Segments(2, lambda node_id: 50 if node_id == "train_actor" else 1)
    asyncio.run(lanes.run_all())
    began = {pair: position for position, pair in enumerate(lanes.segments)}
    assert began[3, 2] < began[4, 2] < began[5, 2] < began[4, 3], "version 2 samples for three iterations"
    ends = [position for position, event in enumerate(lanes.events) if event == ("ended", "rollout", 5)]
    assert ends[0] < lanes.at("ended", "train_actor", 3), "iteration 5 begins while iteration 3 trains"


def test_rows_that_an_earlier_process_kept_are_whole_at_the_first_segment() -> None:
    asked = []

    async def run_node(work: NodeWork, parents: object, *, retries: int) -> NodeReport:
        asked.append((work.node_id, work.segment))
        rows: dict[str, Any] = {"shards": (ShardRef("0", "here", 1),), "metrics": {}, "info": {}, "digests": ()}
        return NodeReport(node_id=work.node_id, group="", seconds=1.0, logs=(), **rows)

    async def whole() -> None:
        turns = Turns(1, swaps_weights=True)
        turns.reset(1)
        await GraphRun(GRAPH, 2, run_node, lambda: fail(LOST), stage_path, turns).run()
        await asyncio.wait_for(turns.wait_to_sample(3, 1), 1.0)  # the next iteration does not wait for what was kept

    asyncio.run(whole())
    assert [segment for node_id, segment in asked if node_id == "rollout"] == [Segment(0, is_last=False)]
    assert all(segment is None for node_id, segment in asked if node_id != "rollout")


@pytest.mark.parametrize("max_staleness", [0, 1, 2])
def test_rollouts_run_ahead_up_to_max_staleness(max_staleness: int) -> None:
    lanes = Lanes(max_staleness, lambda node_id: 50 if node_id == "train_actor" else 1)
    asyncio.run(lanes.run_all())
    for index in range(1, ITERATIONS - max_staleness):
        trained = lanes.at("ended", "train_actor", index)
        assert lanes.at("ended", "rollout", index + max_staleness) < trained or max_staleness == 0
        assert lanes.at("began", "rollout", index + max_staleness + 1) > trained


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_a_graph_without_rollout_runs(max_staleness: int) -> None:
    train = {"node_type": NodeType.MODEL_TRAIN, "node_role": NodeRole.ACTOR}
    graph = TaskGraph.of([Node(node_id="train", executable_ref="m:f", **train)], "g")
    lanes = Lanes(max_staleness, lambda node_id: 1, graph)
    asyncio.run(lanes.run_all())
    assert lanes.finished == [*range(1, ITERATIONS + 1)]


@pytest.mark.parametrize(("rollout", "training", "waits"), [(0.08, 0.02, True), (0.02, 0.08, False)])
def test_the_wait_of_the_trainer_for_rows_is_measured(rollout: float, training: float, waits: bool) -> None:
    turns, waited = Turns(1), []

    async def one(index: int) -> None:
        await turns.wait_to_roll_out(index)
        await asyncio.sleep(rollout)
        turns.mark_rolled_out(index)
        await turns.wait_to_train(index)
        await asyncio.sleep(training)
        waited.append(turns.rolled_out_at[index] - turns.finished_at)
        turns.mark_finished(index)

    asyncio.run(Lookahead(one, ahead=1, last=4).run_until(4, after=0))
    assert [seconds > 0 for seconds in waited] == [True, *[waits] * 3]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("embodied_grpo", {"rollout", "sampling", "reward", "advantage"}),
        ("embodied_dapo", {"rollout", "dynamic_sampling", "reward", "advantage"}),
        ("ppo", {"rollout", "reward"}),
        ("grpo_kl_reward", {"rollout", "reward", "sampling"}),
    ],
)
def test_nodes_without_trainer_ancestors_belong_to_the_rollout(name: str, expected: set[str]) -> None:
    """A node without a model waits if its parents are on the trainer, wherever it runs."""
    assert rollout_nodes(load_pipeline(name=name)) == expected


def test_lost_weights_are_republished_only_if_the_trainer_still_has_them() -> None:
    async def run_node(work: NodeWork, parents: object, *, retries: int) -> NodeReport:
        raise ShardLostError("weights/0/0", "host")

    async def publish() -> None:
        published.append(1)

    for max_staleness, times in ((0, 3), (1, 0)):
        published: list[int] = []
        graph_run = GraphRun(GRAPH, 1, run_node, publish, stage_path, Turns(max_staleness))
        with pytest.raises(ExceptionGroup) as caught:
            asyncio.run(graph_run.run())
        assert {type(error) for error in caught.value.exceptions} == {ShardLostError}
        assert len(published) == times


# ---- failures


async def fail(error: BaseException) -> None:
    await asyncio.sleep(0)
    raise error


def test_a_failed_iteration_cancels_all_and_the_next_call_restarts_them() -> None:
    begun, ended = [], []

    async def iterate_once(index: int) -> None:
        begun.append(index)
        try:
            if index == 2 and begun.count(2) == 1:
                await fail(LOST)
            await asyncio.sleep(0.01 * index)
        finally:
            ended.append(index)

    async def whole() -> None:
        lookahead = Lookahead(iterate_once, ahead=2, last=4)
        with pytest.raises(WorkerLostError):
            await lookahead.run_until(1, after=0)
        assert begun == [1, 2, 3] and sorted(ended) == [1, 2, 3], "some are still in flight"
        await lookahead.run_until(1, after=0)
        assert begun[3:] == [1, 2, 3]
        await lookahead.run_until(2, after=1)
        await lookahead.stop()
        assert sorted(begun[3:]) == [1, 2, 3, 4] and sorted(ended[3:]) == [1, 2, 3, 4]

    asyncio.run(whole())


def test_a_failure_during_cancellation_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def iterate_badly(index: int) -> None:
        try:
            await (fail(LOST) if index == 1 else asyncio.sleep(60.0))
        finally:
            if index == 2:
                raise ValueError("a bug in its cleanup")

    with pytest.raises(WorkerLostError):
        asyncio.run(Lookahead(iterate_badly, ahead=2, last=3).run_until(1, after=0))
    [record] = [record for record in caplog.records if record.name == Lookahead.__module__]
    assert record.getMessage() == "iteration 2 was cancelled and failed" and "a bug in its cleanup" in str(
        record.exc_info
    )


def test_simultaneous_failures_are_raised_as_a_group() -> None:
    async def whole() -> None:
        await Lookahead(lambda index: fail(ValueError(index)), ahead=1, last=2).run_until(1, after=0)

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(whole())
    assert [str(error) for error in caught.value.exceptions] == ["1", "2"]


# ---- with the files of a run


@pytest.fixture(autouse=True)
def outside_of_flows(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_flows(monkeypatch)


def config_of(tiny_config: Callable[..., RunConfig], root: Path, run_id: str, staleness: int) -> RunConfig:
    words = (f"run_root={root}", f"run_id={run_id}", f"iterations={ITERATIONS}", "trainer.keep_checkpoints=2")
    return tiny_config(
        *words, "evaluation.video=false", f"rollout.max_staleness={staleness}", "algorithm.old_log_probs=proximal"
    )


async def finish(run: Any, first: int) -> tuple[Any, ...]:
    """Train to the end; return the outcome."""
    await run_after(run, first)
    lasting = [lasting_metrics(record) for record in run.folder.metrics.read()]
    return run.session.state, run.session.weights_digest, run.stages.ledger.digest(), lasting


def outcome_of(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch, fails_at: int = 0, damaged: tuple[int, ...] = ()
) -> tuple[Any, ...]:
    """Run to the end and return the outcome; damage checkpoints and fail once at the start of an iteration."""
    run = run_in(RunFolder.create(config), config)
    waiting = [fails_at]

    async def run_iteration(run: Any, index: int) -> None:
        if waiting == [index]:
            waiting.clear()
            await run.stages.drain()
            damage(run.folder, damaged)
            raise LOST
        await iterate(run, index)

    async def whole() -> tuple[Any, ...]:
        await begin(run)
        return await finish(run, 0)

    monkeypatch.setattr(training, "run_iteration", run_iteration)
    outcome = asyncio.run(whole())
    assert not fails_at or not waiting
    return outcome


def damage(folder: RunFolder, iterations: tuple[int, ...]) -> None:
    for each in iterations:
        (folder.checkpoints.folder(each) / "updates" / "0").write_text("70")


@pytest.mark.parametrize("staleness", [1, 2])
@pytest.mark.parametrize("damaged", [(), (4,), (3,), (4, 3)], ids=str)
def test_a_failure_changes_nothing(
    tiny_config: Callable[..., RunConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    staleness: int,
    damaged: tuple[int, ...],
) -> None:
    straight = outcome_of(config_of(tiny_config, tmp_path, "straight", staleness), monkeypatch)
    assert straight[0]["updates"] == ITERATIONS
    config = config_of(tiny_config, tmp_path, "disturbed", staleness)
    assert (
        outcome_of(config, monkeypatch, fails_at=5 + staleness, damaged=damaged) == straight
    )  # iteration 4 is finished by then
    synchronous = outcome_of(config_of(tiny_config, tmp_path, "synchronous", 0), monkeypatch)
    assert synchronous[1] != straight[1], "staleness must change the weights, or the test proves nothing"


@pytest.mark.parametrize("damaged", [(), (7,), (6,), (7, 6), (7, 6, 5, 4)], ids=str)
def test_a_new_process_finds_the_weights_for_its_rollouts(
    tiny_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: tuple[int, ...]
) -> None:
    config = config_of(tiny_config, tmp_path, "mine", 2)
    straight = outcome_of(config, monkeypatch)
    folder = RunFolder(config.run_dir)
    assert folder.checkpoints.committed() == [0, 4, 5, 6, 7], "one more checkpoint per version that rollouts lag behind"
    damage(folder, damaged)
    run = run_in(folder, config)

    async def in_a_new_process() -> tuple[Any, ...]:
        last = await recovery.restore(run)
        assert last == {(): 7, (7,): 6}.get(damaged, 0), "the newest commit whose rollout versions are all intact"
        return await finish(run, last)

    assert asyncio.run(in_a_new_process()) == straight
