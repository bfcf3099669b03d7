"""A later process reads the kept rows of a node as the earlier one wrote them."""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embodyflow.data.plans.row_plan import Index, ShardRef
from embodyflow.orchestration.run.stages import Stages
from embodyflow.record.ledger import Ledger
from embodyflow.record.run_folder import RunFolder
from embodyflow.workers.calls import NodeReport, NodeWork
from embodyflow.workers.rows.layout import Layout, plan_inputs

SHARDS = (ShardRef("1/rollout/0", "here", 2), ShardRef("1/rollout/1", "here", 2))


def stages_in(path: Path) -> Stages:
    folder = RunFolder(path)
    return Stages(folder, Ledger(folder.ledger_path), keep_checkpoints=1, repeatable_iterations=1)


def positions_in(report: NodeReport) -> list[list[int]]:
    """Return the positions of the node's rows that each rank reads."""
    [ranks], _ = plan_inputs("reader", Layout.SPLIT, "rollout", 2, [report])
    return [rank.positions.tolist() for rank in ranks]


@pytest.mark.parametrize("order", [None, np.array([2, 0, 3, 1])], ids=["in order", "spread by length"])
def test_kept_rows_keep_their_positions_in_the_batch(order: Index | None, tmp_path: Path) -> None:
    nothing: dict[str, Any] = {"metrics": {}, "info": {}, "digests": ("a", "b"), "seconds": 0.0, "logs": ()}
    report = NodeReport(node_id="rollout", group="rollout", shards=SHARDS, order=order, **nothing)
    work = NodeWork("rollout", "f", "rollout", 1, stage="there")

    async def keep() -> None:
        stages = stages_in(tmp_path)
        stages.keep(work, report)
        await stages.drain()

    async def recall(work: NodeWork, kept: NodeReport) -> NodeReport:
        return replace(kept, shards=SHARDS)

    asyncio.run(keep())
    session: Any = SimpleNamespace(recall=recall)
    again = asyncio.run(stages_in(tmp_path).recall(session, work))
    assert again is not None and (again.order is None) == (order is None)
    assert positions_in(again) == positions_in(report)
