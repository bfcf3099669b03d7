"""The critic's two verbs: to value decisions, and to learn from what came of them."""

from typing import Any

from embodyflow.algorithms.masked import mean_and_variance
from embodyflow.data.metrics import Metric, last, mean
from embodyflow.nodes.declarations import node
from embodyflow.types import Batch, NodeOutput
from tasks.training import step_of


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
    return NodeOutput(batch, _foreseen(batch, worker) | worker.step_critic(batch, **step_of(call)))


@node(
    reads=("action_tokens", "loss_mask", "instruction_ids", "advantages", "old_log_probs", "values", "returns"),
    writes=(),
)
def train_actor_critic(batch: Batch, config: Any = None, *, worker: Any, call: Any, **kwargs: Any) -> NodeOutput:
    """Train policy and critic in the same optimizer steps, as PPO's own code does; otherwise as the nodes of each."""
    return NodeOutput(batch, _foreseen(batch, worker) | worker.step_both(batch, **step_of(call)))


def _foreseen(batch: Batch, worker: Any) -> dict[str, Metric]:
    """Return the share of the returns' variance that the critic's values explain."""
    decided, returns = batch["loss_mask"].any(-1), batch["returns"]
    _, variance = mean_and_variance(returns, decided, worker.all_reduce)
    _, unexplained = mean_and_variance(returns - batch["values"], decided, worker.all_reduce)
    return {"critic/explained_variance": last(1.0 - (unexplained / variance).item())} if variance > 0 else {}
