"""Nodes of the critic: estimate values, and train on the returns."""

from typing import Any

from embodyflow.algorithms.masked import mean_and_variance, over_rows, valued_steps
from embodyflow.data.metrics import Metric, last, mean
from embodyflow.nodes.context import NodeContext
from embodyflow.nodes.declarations import node
from embodyflow.nodes.engines import TrainerEngine
from embodyflow.types import Batch, NodeOutput
from tasks.training import step_arguments


@node(reads=("loss_mask", "instruction_ids"), writes=("values",))
def compute_value(batch: Batch, config: Any = None, *, worker: TrainerEngine, **kwargs: Any) -> NodeOutput:
    """Estimate the value before each decision; a chunk of actions is one decision.

    With ``critic.level=action`` each action of the chunk gets a value, estimated before the chunk.
    """
    batch["values"] = worker.values(batch)
    num_values = int(valued_steps(batch["loss_mask"], batch["values"]).sum())
    return NodeOutput(batch, {"critic/value": mean(batch["values"].sum().item() / max(num_values, 1), num_values)})


@node(reads=("loss_mask", "instruction_ids", "values", "returns"), writes=())
def train_critic(
    batch: Batch, config: Any = None, *, worker: TrainerEngine, call: NodeContext, **kwargs: Any
) -> NodeOutput:
    """Train the critic; ``critic/explained_variance`` compares the values from before training with the returns."""
    return NodeOutput(batch, _explained_variance(batch, worker) | worker.step_critic(batch, **step_arguments(call)))


@node(
    reads=("action_tokens", "loss_mask", "instruction_ids", "advantages", "old_log_probs", "values", "returns"),
    writes=(),
)
def train_actor_critic(
    batch: Batch, config: Any = None, *, worker: TrainerEngine, call: NodeContext, **kwargs: Any
) -> NodeOutput:
    """Train policy and critic in the same optimizer steps, as the code of the PPO paper does."""
    return NodeOutput(batch, _explained_variance(batch, worker) | worker.step_both(batch, **step_arguments(call)))


def _explained_variance(batch: Batch, worker: TrainerEngine) -> dict[str, Metric]:
    """Return the share of the returns' variance that the values explain; no metric if the returns do not vary."""
    sums, valued = over_rows(worker.all_reduce), valued_steps(batch["loss_mask"], batch["values"])
    values, returns = batch["values"].flatten(1), batch["returns"].flatten(1)
    _, variance = mean_and_variance(returns, valued, sums)
    _, unexplained = mean_and_variance(returns - values, valued, sums)
    return {"critic/explained_variance": last(1.0 - (unexplained / variance).item())} if variance > 0 else {}
