"""The critic's two verbs: to value decisions, and to learn from what came of them."""

from typing import Any

from embodyflow.algorithms.masked import mean_and_variance
from embodyflow.data.metrics import last, mean
from embodyflow.node_fields import node
from embodyflow.seeding import derive_seed
from embodyflow.types import Batch, NodeOutput


@node(reads=("loss_mask", "instruction_ids"), writes=("values",))
def compute_value(batch: Batch, config: Any = None, *, worker: Any, **kwargs: Any) -> NodeOutput:
    """Estimate the return from before each decision on; a chunk of actions is one decision, and one value."""
    batch["values"] = worker.values(batch)
    decided = batch["loss_mask"].any(-1)
    num_decisions = int(decided.sum())
    return NodeOutput(
        batch, {"critic/value": mean(batch["values"].sum().item() / max(num_decisions, 1), num_decisions)}
    )


@node(reads=("loss_mask", "instruction_ids", "values", "returns"), writes=())
def train_critic(batch: Batch, config: Any = None, *, worker: Any, call: Any, **kwargs: Any) -> NodeOutput:
    """Take the critic's optimizer steps of the iteration; say how much of the returns it had foreseen before them."""
    decided, returns = batch["loss_mask"].any(-1), batch["returns"]
    _, variance = mean_and_variance(returns, decided, worker.all_reduce)
    _, unexplained = mean_and_variance(returns - batch["values"], decided, worker.all_reduce)
    metrics = worker.step_critic(
        batch,
        positions=call.positions,
        total_rows=call.total_rows,
        seed=derive_seed(call.seed, call.iteration, call.node_id),
        iteration=call.iteration,
    )
    if variance > 0:
        metrics["critic/explained_variance"] = last(1.0 - (unexplained / variance).item())
    return NodeOutput(batch, metrics)
