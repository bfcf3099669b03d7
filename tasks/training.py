"""Nodes that change weights."""

from typing import Any, TypedDict

from embodyflow.data.plans.row_plan import Index
from embodyflow.nodes.context import NodeContext
from embodyflow.nodes.declarations import node
from embodyflow.nodes.engines import TrainerEngine
from embodyflow.seeding import derive_seed
from embodyflow.types import Batch, NodeOutput


@node(
    reads=("action_tokens", "loss_mask", "instruction_ids", "advantages", "old_log_probs", "ref_log_probs"),
    writes=(),
)
def train_actor(
    batch: Batch, config: Any = None, *, worker: TrainerEngine, call: NodeContext, **kwargs: Any
) -> NodeOutput:
    """Take the policy's optimizer steps of the iteration; pass the rows on unchanged."""
    return NodeOutput(batch, worker.step(batch, **step_arguments(call)))


class StepArguments(TypedDict):
    """Keywords of an engine's step: where the rows belong, and what to draw mini-batches by."""

    positions: Index
    total_rows: int
    seed: int
    iteration: int


def step_arguments(call: NodeContext) -> StepArguments:
    """Return the keywords of an engine's step for this call."""
    seed = derive_seed(call.seed, call.iteration, call.node_id)
    return {"positions": call.positions, "total_rows": call.total_rows, "seed": seed, "iteration": call.iteration}


@node(reads=("state", "actions", "num_steps", "instruction_ids"), writes=())
def fit(batch: Batch, config: Any = None, *, worker: TrainerEngine, call: NodeContext, **kwargs: Any) -> NodeOutput:
    """Fine-tune the policy on demonstrations, sorted by uid."""
    ordered = batch[batch["uid"].argsort()]
    return NodeOutput(None, worker.fit(ordered, derive_seed(call.seed, call.iteration, call.node_id)))


def fit_further(batch: Batch | None, config: Any = None, *, worker: TrainerEngine, **kwargs: Any) -> NodeOutput:
    """Take ``config["num_steps"]`` further steps of the fit."""
    return NodeOutput(None, worker.fit_further(config["num_steps"]))
