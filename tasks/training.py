"""Changing weights."""

from typing import Any

from embodyflow.nodes.declarations import node
from embodyflow.seeding import derive_seed
from embodyflow.types import Batch, NodeOutput


@node(
    reads=("action_tokens", "loss_mask", "instruction_ids", "advantages", "old_log_probs", "ref_log_probs"),
    writes=(),
)
def train_actor(batch: Batch, config: Any = None, *, worker: Any, call: Any, **kwargs: Any) -> NodeOutput:
    """Take the policy's optimizer steps of the iteration; the rows are passed on as they are."""
    return NodeOutput(batch, worker.step(batch, **step_of(call)))


def step_of(call: Any) -> dict[str, Any]:
    """Return what an engine's step needs to know of a call beside its rows."""
    seed = derive_seed(call.seed, call.iteration, call.node_id)
    return {"positions": call.positions, "total_rows": call.total_rows, "seed": seed, "iteration": call.iteration}


@node(reads=("state", "actions", "num_steps", "instruction_ids"), writes=())
def fit(batch: Batch, config: Any = None, *, worker: Any, call: Any, **kwargs: Any) -> NodeOutput:
    """Fine-tune the policy on demonstrations, in the order of their uid."""
    ordered = batch[batch["uid"].argsort()]
    return NodeOutput(None, worker.fit(ordered, derive_seed(call.seed, call.iteration, call.node_id)))
