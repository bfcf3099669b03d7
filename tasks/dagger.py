"""Nodes of DAgger: episodes that an expert labels, the data of all iterations, and the fit to them."""

import time
from typing import Any

from embodyflow.data.batches import to_batch
from embodyflow.data.metrics import mean, total
from embodyflow.nodes.context import NodeContext
from embodyflow.nodes.declarations import node
from embodyflow.nodes.engines import LabellingEngine, LabelTrainerEngine
from embodyflow.seeding import derive_seed
from embodyflow.types import Batch, NodeOutput
from tasks.rollout import rollout_metrics


@node(
    reads=(),
    writes=(
        *("uid", "group_id", "policy_version", "seed", "env_task_id", "goal", "instruction_ids", "expert_actions"),
        *("labelled", "by_expert", "num_steps", "episode_return", "success", "terminated", "truncated"),
    ),
)
def label_episodes(
    batch: Batch | None, config: Any = None, *, worker: LabellingEngine, call: NodeContext, **kwargs: Any
) -> NodeOutput:
    """Play this rank's episodes with the current policy, and record the expert's action in the states it visits."""
    started = time.perf_counter()
    episodes = worker.training_episodes(call.seed, call.iteration)
    rows = worker.label(episodes, (call.seed, call.iteration, call.node_id), call.iteration)
    num_steps = int(rows["num_steps"].sum())
    metrics = {
        "dagger/num_labels": total(int(rows["labelled"].sum())),
        "dagger/expert_share": mean(rows["by_expert"].sum() / num_steps, num_steps),
    }
    return NodeOutput(to_batch(rows), rollout_metrics(rows, time.perf_counter() - started) | metrics)


@node(reads=("uid", "instruction_ids", "expert_actions", "labelled", "num_steps"), writes=())
def store_labels(
    batch: Batch, config: Any = None, *, worker: LabelTrainerEngine, call: NodeContext, **kwargs: Any
) -> NodeOutput:
    """Add the labelled steps to those of the iterations before; pass no rows on."""
    return NodeOutput(None, worker.store(batch, call.iteration))


@node(reads=(), writes=())
def train_on_labels(
    batch: Batch | None, config: Any = None, *, worker: LabelTrainerEngine, call: NodeContext, **kwargs: Any
) -> NodeOutput:
    """Take ``dagger.steps`` optimizer steps on the labelled steps of all iterations."""
    return NodeOutput(None, worker.imitate(derive_seed(call.seed, call.iteration, call.node_id), call.iteration))
