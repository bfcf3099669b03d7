"""Iterations that are under way at the same time: what they wait for, and that nobody's pace changes a number."""

import asyncio
import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from counting_run import begin, go_on, iterate, run_in
from hypothesis import given
from hypothesis import strategies as st

from embodyflow.config import RunConfig
from embodyflow.errors import ShardLostError, WorkerLostError
from embodyflow.orchestration.run import nodes, recovery, stages, training
from embodyflow.orchestration.run.graph_run import GraphRun, rollout_nodes
from embodyflow.orchestration.run.lookahead import Lookahead
from embodyflow.orchestration.run.turns import Turns
from embodyflow.record.run_folder import RunFolder
from embodyflow.workers.calls import NodeReport, NodeWork
from pipelines import Node, NodeRole, NodeType, TaskGraph, load_pipeline

ITERATIONS = 7
LOST = WorkerLostError("a worker of the trainer group is gone")
GRAPH = load_pipeline(name="embodied_grpo")


class Lanes:
    """Iterations whose nodes take a number of steps of the event loop, and what began and ended in which order."""

    def __init__(self, max_staleness: int, steps: Callable[[str], int], graph: TaskGraph = GRAPH) -> None:
        self.turns, self._steps, self._graph = Turns(max_staleness), steps, graph
        self.events: list[tuple[str, str, int]] = []
        self.versions: dict[int, int] = {}
        self.finished: list[int] = []

    async def run_all(self) -> None:
        lookahead = Lookahead(self._iterate, self.turns.max_staleness, ITERATIONS)
        for index in range(1, ITERATIONS + 1):
            await lookahead.reach(index, self.turns.last_finished)

    async def _iterate(self, index: int) -> None:
        await self.turns.to_roll_out(index)
        await GraphRun(self._graph, index, self._run_node, self._publish, lambda _, node_id: node_id, self.turns).run()
        self.finished.append(index)
        self.turns.finished(index)

    async def _publish(self) -> None:
        raise AssertionError("no weights were lost")

    async def _run_node(self, work: NodeWork, parents: list[NodeReport], *, retries: int) -> NodeReport:
        self.events.append(("began", work.node_id, work.iteration))
        if work.node_id == "rollout":
            assert work.policy_version is not None
            self.versions[work.iteration] = work.policy_version
            assert work.policy_version <= max(self.finished, default=0), "it has no such weights yet"
        for _ in range(self._steps(work.node_id)):
            await asyncio.sleep(0)
        self.events.append(("ended", work.node_id, work.iteration))
        nothing: dict[str, Any] = {"metrics": {}, "info": {}, "digests": (), "seconds": 0.0, "logs": ()}
        return NodeReport(node_id=work.node_id, group="", shards=(), **nothing)

    def at(self, what: str, node_id: str, index: int) -> int:
        return self.events.index((what, node_id, index))


@given(st.integers(0, 3), st.randoms(use_true_random=False))
def test_whoever_is_faster_the_same_weights_act(max_staleness: int, rng: random.Random) -> None:
    lanes = Lanes(max_staleness, lambda node_id: rng.randrange(6))
    asyncio.run(lanes.run_all())
    assert lanes.versions == {index: max(index - 1 - max_staleness, 0) for index in range(1, ITERATIONS + 1)}
    assert lanes.finished == [*range(1, ITERATIONS + 1)]
    for index in range(2, ITERATIONS + 1):  # one rollout at a time, and one iteration in the trainer
        assert lanes.at("ended", "rollout", index - 1) < lanes.at("began", "rollout", index)
        assert lanes.at("ended", "train_actor", index - 1) < lanes.at("began", "old_log_prob", index)


@pytest.mark.parametrize("max_staleness", [0, 1, 2])
def test_rollouts_are_ahead_as_far_as_they_may_be(max_staleness: int) -> None:
    lanes = Lanes(max_staleness, lambda node_id: 50 if node_id == "train_actor" else 1)
    asyncio.run(lanes.run_all())
    for index in range(1, ITERATIONS - max_staleness):
        trained = lanes.at("ended", "train_actor", index)
        assert lanes.at("ended", "rollout", index + max_staleness) < trained or max_staleness == 0
        assert lanes.at("began", "rollout", index + max_staleness + 1) > trained


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_a_graph_of_the_trainer_alone_has_no_rollout_to_wait_for(max_staleness: int) -> None:
    train = {"node_type": NodeType.MODEL_TRAIN, "node_role": NodeRole.ACTOR}
    graph = TaskGraph.of([Node(node_id="train", executable_ref="m:f", **train)], "g")
    lanes = Lanes(max_staleness, lambda node_id: 1, graph)
    asyncio.run(lanes.run_all())
    assert lanes.finished == [*range(1, ITERATIONS + 1)]


@pytest.mark.parametrize(("rollout", "training", "waits"), [(0.08, 0.02, True), (0.02, 0.08, False)])
def test_how_long_the_trainer_waits_for_rows_is_told(rollout: float, training: float, waits: bool) -> None:
    turns, waited = Turns(1), []

    async def one(index: int) -> None:
        await turns.to_roll_out(index)
        await asyncio.sleep(rollout)
        turns.rolled_out(index)
        await turns.to_train(index)
        await asyncio.sleep(training)
        waited.append(turns.rolled_out_at[index] - turns.finished_at)
        turns.finished(index)

    asyncio.run(Lookahead(one, ahead=1, last=4).reach(4, after=0))
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
def test_what_needs_nothing_of_the_trainer_is_rolled_out(name: str, expected: set[str]) -> None:
    """A node without a model whose parents are the trainer's waits, wherever it runs."""
    assert rollout_nodes(load_pipeline(name=name)) == expected


def test_lost_weights_are_published_again_only_by_a_trainer_that_still_has_them() -> None:
    async def run_node(work: NodeWork, parents: object, *, retries: int) -> NodeReport:
        raise ShardLostError("weights/0/0", "host")

    async def publish() -> None:
        published.append(1)

    for max_staleness, times in ((0, 3), (1, 0)):
        published: list[int] = []
        graph_run = GraphRun(GRAPH, 1, run_node, publish, lambda _, node_id: node_id, Turns(max_staleness))
        with pytest.raises(ExceptionGroup) as caught:
            asyncio.run(graph_run.run())
        assert {type(error) for error in caught.value.exceptions} == {ShardLostError}
        assert len(published) == times


# ---- failures


async def fail(error: BaseException) -> None:
    await asyncio.sleep(0)
    raise error


def test_one_that_fails_ends_all_and_the_next_call_begins_them_again() -> None:
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
            await lookahead.reach(1, after=0)
        assert begun == [1, 2, 3] and sorted(ended) == [1, 2, 3], "some are still under way"
        await lookahead.reach(1, after=0)
        assert begun[3:] == [1, 2, 3]
        await lookahead.reach(2, after=1)
        await lookahead.stop()
        assert sorted(begun[3:]) == [1, 2, 3, 4] and sorted(ended[3:]) == [1, 2, 3, 4]

    asyncio.run(whole())


def test_one_that_fails_as_it_is_given_up_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def iterate_badly(index: int) -> None:
        try:
            await (fail(LOST) if index == 1 else asyncio.sleep(60.0))
        finally:
            if index == 2:
                raise ValueError("a bug in its end")

    with pytest.raises(WorkerLostError):
        asyncio.run(Lookahead(iterate_badly, ahead=2, last=3).reach(1, after=0))
    [record] = [record for record in caplog.records if record.name == "embodyflow.orchestration.run.lookahead"]
    assert record.getMessage() == "iteration 2 was given up, and failed" and "a bug in its end" in str(record.exc_info)


def test_all_that_fail_at_once_are_told() -> None:
    async def whole() -> None:
        await Lookahead(lambda index: fail(ValueError(index)), ahead=1, last=2).reach(1, after=0)

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(whole())
    assert [str(error) for error in caught.value.exceptions] == ["1", "2"]


# ---- with the files of a run


@pytest.fixture(autouse=True)
def outside_of_flows(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> None:
        pass

    async def evaluate(run: Any, index: int) -> None:
        run.folder.metrics.append({"iteration": index, "eval/greedy_success_rate": 0.5})

    for module in (nodes, recovery, stages):
        monkeypatch.setattr(module, "get_run_logger", lambda: logging.getLogger("turns"))
    monkeypatch.setattr(recovery, "FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(recovery, "note_processes", nothing)
    monkeypatch.setattr(training, "report_progress", lambda run, index: None)
    monkeypatch.setattr(training, "evaluate", evaluate)
    monkeypatch.setattr("counting_run.Ranks.mend", nothing, raising=False)


def config_of(tiny_config: Callable[..., RunConfig], root: Path, run_id: str, staleness: int) -> RunConfig:
    words = (f"run_root={root}", f"run_id={run_id}", f"iterations={ITERATIONS}", "trainer.keep_checkpoints=2")
    return tiny_config(
        *words, "evaluation.video=false", f"rollout.max_staleness={staleness}", "algorithm.old_log_probs=proximal"
    )


async def live(run: Any, first: int) -> tuple[Any, ...]:
    """Train to the end; return what came of it."""
    await go_on(run, first)
    return run.session.state, run.session.weights_digest, run.stages._ledger.digest(), run.folder.metrics.read()


def lived(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch, fails_at: int = 0, damaged: tuple[int, ...] = ()
) -> tuple[Any, ...]:
    """Return what comes of a run, in which checkpoints are damaged and a failure follows when an iteration begins."""
    run = run_in(RunFolder.create(config), config)
    waiting = [fails_at]

    async def run_iteration(run: Any, index: int) -> None:
        if waiting == [index]:
            waiting.clear()
            await run.stages.settle()
            damage(run.folder, damaged)
            raise LOST
        await iterate(run, index)

    async def whole() -> tuple[Any, ...]:
        await begin(run)
        return await live(run, 0)

    monkeypatch.setattr(training, "run_iteration", run_iteration)
    outcome = asyncio.run(whole())
    assert not fails_at or not waiting
    return outcome


def damage(folder: RunFolder, iterations: tuple[int, ...]) -> None:
    for each in iterations:
        (folder.checkpoints.folder(each) / "updates" / "0").write_text("70")


@pytest.mark.parametrize("staleness", [1, 2])
@pytest.mark.parametrize("damaged", [(), (4,), (3,), (4, 3)], ids=str)
def test_a_failure_beside_others_changes_nothing(
    tiny_config: Callable[..., RunConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    staleness: int,
    damaged: tuple[int, ...],
) -> None:
    straight = lived(config_of(tiny_config, tmp_path, "straight", staleness), monkeypatch)
    assert straight[0]["updates"] == ITERATIONS
    config = config_of(tiny_config, tmp_path, "disturbed", staleness)
    assert lived(config, monkeypatch, fails_at=5 + staleness, damaged=damaged) == straight  # 4 is finished
    synchronous = lived(config_of(tiny_config, tmp_path, "synchronous", 0), monkeypatch)
    assert synchronous[1] != straight[1], "the rows do not tell which weights acted"


@pytest.mark.parametrize("damaged", [(), (7,), (6,), (7, 6), (7, 6, 5, 4)], ids=str)
def test_a_new_process_finds_the_weights_that_act(
    tiny_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: tuple[int, ...]
) -> None:
    config = config_of(tiny_config, tmp_path, "mine", 2)
    straight = lived(config, monkeypatch)
    folder = RunFolder(config.run_dir)
    assert folder.checkpoints.committed() == [0, 4, 5, 6, 7], "one more for each version that rollouts lie behind"
    damage(folder, damaged)
    run = run_in(folder, config)

    async def in_a_new_process() -> tuple[Any, ...]:
        last = await recovery.restore(run)
        assert last == {(): 7, (7,): 6}.get(damaged, 0), "of what is left not all versions are there"
        return await live(run, last)

    assert asyncio.run(in_a_new_process()) == straight
