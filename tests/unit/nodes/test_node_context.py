"""What every context of a node function knows: one in ``CONTEXTS`` must pass these tests as they are."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conformance import differences

from embodyflow.data.plans.row_plan import RankInput, ShardRef, Slice
from embodyflow.nodes.context import NodeContext
from embodyflow.workers.calls import NodeCall, NodeWork


def node_call(parents: tuple[RankInput, ...], stage: str | None, next_stage: str | None) -> NodeCall:
    run_folder = None if stage is None else str(Path(stage).parents[2])
    files = {"stage": stage, "next_stage": next_stage, "run_folder": run_folder}
    work = NodeWork("sampling", "tasks:dynamic_sampling", None, 3, **files)
    return NodeCall(work, seed=7, parents=parents, policy_version=2)


CONTEXTS: list[Callable[..., Any]] = [node_call]
"""Each makes the context of node ``sampling`` in iteration 3 of a run with seed 7, from parents and folders."""

STAGES = tuple(f"/runs/mine/stages/iteration-{index:06d}/sampling" for index in (3, 4))
ROWS = RankInput((Slice(ShardRef("3/rollout/0", "here", 8), 2, 5),), offset=2, total_rows=8)
NOTHING = RankInput((), 0, 0)


@pytest.mark.parametrize("make", CONTEXTS)
def test_it_names_the_draw_of_every_row(make: Callable[..., Any]) -> None:
    context = make((NOTHING, ROWS), *STAGES)  # a parent may pass no rows on
    assert differences(NodeContext, context) == []
    assert (context.node_id, context.iteration, context.seed, context.policy_version) == ("sampling", 3, 7, 2)
    assert context.positions.tolist() == [2, 3, 4] and context.total_rows == 8
    assert make((), *STAGES).positions.tolist() == [] and make((), *STAGES).total_rows == 0


@pytest.mark.parametrize("make", CONTEXTS)
def test_files_of_a_rank_are_its_own(make: Callable[..., Any], tmp_path: Path) -> None:
    stages = [str(tmp_path / "stages" / f"iteration-{index}" / "sampling") for index in (3, 4)]
    context, table = make((ROWS,), *stages), {"uid": np.arange(2)}
    assert context.run_folder == tmp_path
    context.journal(0).append(table)
    assert [len(context.journal(rank, part).read()) for rank, part in ((0, 0), (0, 1), (1, 0))] == [1, 0, 0]
    _, left = context.surplus(0)
    left.replace(table)
    found, _ = make((ROWS,), stages[1], str(tmp_path / "later")).surplus(0)
    assert len(found.read()) == 1, "the next iteration finds what this one leaves"


@pytest.mark.parametrize("make", CONTEXTS)
def test_without_a_folder_nothing_is_kept(make: Callable[..., Any]) -> None:
    context = make((ROWS,), None, None)
    assert context.run_folder is context.journal(0) is context.surplus(0) is None
    assert make((ROWS,), STAGES[0], None).surplus(0) is None


@pytest.mark.parametrize("make", CONTEXTS)
def test_it_travels_to_a_rank_as_a_few_hundred_bytes(make: Callable[..., Any]) -> None:
    context = make((ROWS,), *STAGES)
    packed = pickle.dumps(context)
    assert pickle.loads(packed) == context and len(packed) < 1500
