"""Chains: nodes that a single rank runs in one call, since each reads only what the rank has written or can read.

The flow walks its graph node by node all the same. It names the nodes that can follow when it asks for the first one,
and finds their reports here when it asks for them.
"""

from collections.abc import Callable, Mapping, Sequence

from embodyflow.data.plans.row_plan import RankInput
from embodyflow.workers.calls import ChainCall, NodeCall, NodeReport, NodeResult, NodeWork
from embodyflow.workers.rows.layout import Layout, Rows, order_of, plan_inputs


class ReportsAhead:
    """Reports of nodes that ran in a chain and that the flow has not asked for yet."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, str], tuple[Sequence[NodeReport], NodeReport]] = {}

    def keep(self, work: NodeWork, parents: Sequence[NodeReport], report: NodeReport) -> None:
        """Keep the report of a node that ran on its parents' rows; forget those of earlier iterations."""
        self._kept = {key: each for key, each in self._kept.items() if key[0] >= work.iteration}
        self._kept[work.iteration, work.node_id] = parents, report

    def take(self, work: NodeWork, parents: Sequence[NodeReport]) -> NodeReport | None:
        """Return the report of a node, once; ``None`` if it did not run, or on rows that are recreated since."""
        read, report = self._kept.pop((work.iteration, work.node_id), ((), None))
        is_current = len(read) == len(parents) and all(a is b for a, b in zip(read, parents, strict=True))
        return report if is_current else None

    def clear(self) -> None:
        """Forget all reports."""
        self._kept.clear()


def run_chain(
    chain: ChainCall, run: Callable[[NodeCall], NodeResult], keep_error: Callable[[NodeCall, Exception], None]
) -> list[NodeResult]:
    """Run the nodes of a chain on this rank; return the results of those before the first that fails.

    Args:
        chain: The nodes.
        run: Function that runs a node.
        keep_error: Function that keeps the error of a node until it is asked for.

    Raises:
        Exception: The first node raised it.
    """
    results = [run(chain.first)]
    written = {chain.first.node_id: _rows(chain, chain.first, results[0])}
    for call, parents in chain.following:
        try:
            call = call.with_parents(_inputs(chain, call, parents, written))
            result = run(call)
        except Exception as error:
            keep_error(call, error)
            break
        written[call.node_id] = _rows(chain, call, result)
        results.append(result)
    return results


def _inputs(
    chain: ChainCall, call: NodeCall, parents: Sequence[str | Rows], written: Mapping[str, Rows]
) -> list[RankInput]:
    known = [written[parent] if isinstance(parent, str) else parent for parent in parents]
    shares, _ = plan_inputs(call.node_id, call.work.layout, chain.group, 1, known)
    return [ranks[0] for ranks in shares]


def _rows(chain: ChainCall, call: NodeCall, result: NodeResult) -> Rows:
    """Return the rows that a node of the chain has written, as its report will have them."""
    shards = () if result.shard is None else (result.shard,)
    order = order_of([call.rows], shards) if call.work.layout is Layout.SPLIT else None
    return Rows(node_id=call.node_id, group=chain.group, shards=shards, facts=result.facts, order=order)
