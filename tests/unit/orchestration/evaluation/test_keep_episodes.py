"""A record of episodes is complete or missing, never partial."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import tasks
from embodyflow.data.plans.row_plan import ShardRef
from embodyflow.errors import ShardLostError
from embodyflow.orchestration.evaluation import kept_episodes as episodes
from embodyflow.record.run_folder import RunFolder
from embodyflow.workers.calls import NodeReport, NodeWork
from pipelines import Node, NodeRole, NodeType, TaskGraph


@pytest.fixture(autouse=True)
def outside_of_flows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episodes, "get_run_logger", lambda: logging.getLogger("episodes"))


def write(rank: int, config: Any) -> None:
    tasks.keep_episodes(TensorDict({"uid": torch.arange(2)}, [2]), config, worker=SimpleNamespace(rank=rank))


class Session:
    """Writes the part ``trained`` slowly, while the part ``played-rollout`` fails on the first of two ranks.

    Attributes:
        written: Parts that are complete.
        late: Configuration of the part that the second rank still has to write when the first has failed.
    """

    def __init__(self, error: Exception) -> None:
        self._error, self.written, self.late = error, list[str](), dict[str, Any]()

    async def run_node(self, work: NodeWork, parents: Sequence[NodeReport]) -> None:
        if not work.config["trained"]:
            self.late = dict(work.config)
            raise self._error
        await asyncio.sleep(0.05)
        write(0, work.config)
        self.written.append(work.config["part"])


def keep(folder: RunFolder, error: Exception) -> Session:
    nothing: dict[str, Any] = {"metrics": {}, "info": {}, "digests": (), "seconds": 0.0, "logs": ()}
    shards = (ShardRef("1/rollout/0", "here", 2),)
    reports = {"rollout": NodeReport(node_id="rollout", group="rollout", shards=shards, **nothing)}
    kind: dict[str, Any] = {"node_type": NodeType.MODEL_INFERENCE, "node_role": NodeRole.ROLLOUT}
    graph = TaskGraph.of([Node(node_id="rollout", executable_ref="m:f", **kind)], "g")
    session = Session(error)
    run: Any = SimpleNamespace(graph=graph, config=SimpleNamespace(kept_iterations=2), folder=folder, session=session)
    asyncio.run(episodes.keep_episodes(run, 1, reports))
    return session


def test_a_lost_part_removes_the_record(tmp_path: Path) -> None:
    session = keep(folder := RunFolder(tmp_path), ShardLostError("1/rollout/0", "here"))
    assert session.written == ["trained"], "the other part must complete first"
    with pytest.raises(FileNotFoundError):
        write(1, session.late)
    folder.episodes.commit(1, keep=2)
    assert folder.episodes.kept() == {} and not any((tmp_path / "episodes").iterdir())


def test_other_errors_are_raised(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="the drawer"):
        keep(RunFolder(tmp_path), LookupError("the drawer"))
