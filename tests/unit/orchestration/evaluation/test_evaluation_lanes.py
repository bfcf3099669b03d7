"""Where an evaluation is played: the weights, the group and the parts of its nodes."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from embodyflow.config import RunConfig
from embodyflow.data.metrics import mean, total
from embodyflow.data.plans.row_plan import ShardRef, WeightsRef
from embodyflow.orchestration.evaluation import lanes
from embodyflow.orchestration.evaluation.lanes import BetweenRollouts, InTurn, Lane, OwnWorker
from embodyflow.orchestration.run.iterations.parts import run_in_parts
from embodyflow.record.episodes.stage_rows import StageRows
from embodyflow.workers.calls import NodeReport, NodeWork, Published
from embodyflow.workers.session import Session

WORK = NodeWork("evaluate_greedy", "tasks:evaluate_policy", "rollout", 3, {"mode": "greedy"})
REPORT = NodeReport(node_id="", group="rollout", shards=(), metrics={}, info={}, digests=(), seconds=1.0, logs=())


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[NodeWork]:
    """The nodes that lanes have submitted."""
    works: list[NodeWork] = []

    async def submit(work: NodeWork, parents: object = ()) -> NodeReport:
        works.append(work)
        return REPORT

    monkeypatch.setattr(lanes, "submit_node", submit)
    return works


def use(lane: Lane) -> None:
    async def whole() -> None:
        await lane.play(WORK)
        await lane.run(WORK)

    asyncio.run(whole())


def test_each_lane_acts_with_its_version(
    submitted: list[NodeWork], tiny_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    rows, config = StageRows(tmp_path), tiny_config("rollout.num_workers=2", "cluster.node_timeout=50")
    stage = str(tmp_path / "iteration-000003" / "evaluate_greedy")
    for lane in (InTurn(2), BetweenRollouts(3, rows, config, 5), OwnWorker(3, rows, config)):
        use(lane)
    in_turn, between, own = submitted[:2], submitted[2:4], submitted[4:]
    assert in_turn == [replace(WORK, num_ranks=2), WORK]
    parts = {"mode": "greedy", "rows_per_part": 5}
    acts = replace(WORK, policy_version=3)
    assert between == [replace(acts, config=parts, stage=stage, num_ranks=2, in_parts=True), acts]
    shares, acts = {"mode": "greedy", "shares": 2}, replace(acts, group="evaluation")
    assert own == [replace(acts, config=shares, stage=stage, timeout=100.0), acts]


def test_a_node_runs_part_by_part_until_no_rank_has_rows_left() -> None:
    calls: list[object] = []

    async def run_node(work: NodeWork) -> NodeReport:
        part = work.config.get("part")
        calls.append(part)
        if part is None:
            metrics = {"eval/rate": mean(0.5, 8), "perf/evaluate_greedy_seconds": mean(0.0), "perf/faults": total(0)}
            return replace(REPORT, metrics=metrics, info={"examples": ["shown"]})
        return replace(REPORT, metrics={"perf/faults": total(1)}, info={"unplayed": [1] if part < 2 else []})

    report = asyncio.run(run_in_parts(run_node, WORK))
    assert calls == [0, 1, 2, None]
    assert (report.metrics["eval/rate"].value, report.metrics["perf/faults"].value) == (0.5, 3)
    assert (report.seconds, report.metrics["perf/evaluate_greedy_seconds"].value) == (4.0, 4.0)
    assert report.info == {"examples": ["shown"]}


class Trainer:
    """A group that publishes weights."""

    async def call(self, method: str, version: int) -> list[Any]:
        return [Published(ShardRef(f"weights/{version}/0", "here", 1), f"digest {version}")]


@pytest.mark.parametrize("staleness", [0, 1])
def test_held_weights_stay_until_they_are_released(
    tiny_config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch, staleness: int
) -> None:
    config = tiny_config(f"rollout.max_staleness={staleness}", "algorithm.old_log_probs=proximal")
    session, freed = Session(config, {"trainer": Trainer()}, {}), []  # type: ignore[dict-item]

    async def free(prefix: str) -> None:
        freed.append(prefix)

    async def whole() -> None:
        for version in range(4):
            await session.publish_weights(version)
            if version == 1:
                session.hold(1)
        assert session.held_digest(1) == "digest 1" and session.held_digest(2) is None
        work = replace(WORK, policy_version=1)
        assert session._weights_for(work) == (1, WeightsRef(ShardRef("weights/1/0", "here", 1)))
        assert "weights/1/" not in freed
        await session.release(1)

    monkeypatch.setattr(session, "free", free)
    asyncio.run(whole())
    assert freed == [f"weights/{version}/" for version in range(4 - 1 - staleness) if version != 1] + ["weights/1/"]
    with pytest.raises(AssertionError, match="version 1 is not the newest, 3"):
        session.hold(1)
