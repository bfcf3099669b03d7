"""The CPU time of the flow in an iteration, with a clock of the test."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from embodyflow.graph import TaskGraph
from embodyflow.orchestration.run.iterations import iteration, nodes
from embodyflow.orchestration.run.iterations import turns as turns_module
from embodyflow.orchestration.run.iterations.lookahead import Lookahead
from embodyflow.orchestration.run.iterations.turns import Turns
from embodyflow.process.core_time import CoreTime

ITERATIONS = 4


@pytest.mark.parametrize("max_staleness", [0, 1, 2])
def test_each_second_of_the_flow_counts_for_one_iteration(max_staleness: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With iterations in flight beside each other, a second counted for all of them."""
    used, turns, counted = [CoreTime()], Turns(max_staleness), list[float]()

    async def run_graph(index: int, *_: Any, **__: Any) -> dict[str, Any]:
        turns.mark_rolled_out(index)
        await turns.wait_to_train(index)
        for _ in range(10):  # let the iterations ahead begin
            await asyncio.sleep(0)
        used[0] += CoreTime(computing=1.0, queued=0.5)
        return {}

    async def nothing(*_: Any) -> dict[str, Any]:
        return {}

    async def run_in_turn(index: int) -> None:
        await turns.wait_to_roll_out(index)
        metrics, _ = await iteration.run_nodes(index, nothing)  # type: ignore[arg-type]
        counted.append(metrics["perf/flow_cpu_seconds"])
        assert metrics["perf/flow_queued_seconds"] == 0.5
        turns.mark_finished(index)

    for module in (iteration, turns_module):
        monkeypatch.setattr(module, "core_time_so_far", lambda: used[0])
    monkeypatch.setattr(iteration, "run_graph", run_graph)
    monkeypatch.setattr(iteration, "keep_episodes", nothing)
    session = SimpleNamespace(buffer_metrics=nothing, idle_shares=lambda since, until: {})
    scaling = SimpleNamespace(begin=_one_worker, end=lambda index, metrics: None)
    run: Any = SimpleNamespace(turns=turns, session=session, scaling=scaling, graph=TaskGraph("empty", ""))

    async def run_all() -> None:
        nodes.CURRENT_RUN.set(run)
        turns.reset(0)
        await Lookahead(run_in_turn, max_staleness, ITERATIONS).run_until(ITERATIONS, after=0)

    asyncio.run(run_all())
    assert counted == [1.0] * ITERATIONS


async def _one_worker(index: int) -> int:
    return 1
