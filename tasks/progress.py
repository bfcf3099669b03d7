"""The node that scores failed episodes by how close they came to success."""

from typing import Any

import numpy as np
import torch

from embodyflow.data.metrics import mean
from embodyflow.errors import ConfigError, RewardError
from embodyflow.nodes.context import NodeContext
from embodyflow.nodes.declarations import node
from embodyflow.nodes.engines import Reducer
from embodyflow.rewards.progress.episode_embeddings import build_embedding
from embodyflow.rewards.progress.progress_reward import measure_progress
from embodyflow.types import Batch, NodeOutput


@node(reads=("uid", "env_task_id", "success", "loss_mask"), writes=("scores", "progress_distance"))
def score_progress(
    batch: Batch, config: Any = None, *, worker: Reducer, call: NodeContext, **kwargs: Any
) -> NodeOutput:
    """Score episodes by SRPO's progress reward; pass on ``uid`` and the scores.

    Every rank embeds its own episodes and then compares those of all ranks. So a failure is measured against the
    successes of the whole batch, and the scores are bit-identical on any number of ranks.

    Raises:
        ConfigError: The run has no ``progress`` settings.
        RewardError: An embedding is not finite.
    """
    settings = worker.config.progress
    if settings is None:
        raise ConfigError("progress=null: tasks:score_progress needs to know how progress is measured")
    embedded = build_embedding(settings.embedding, worker.config.cluster.device)(batch).double()
    if not (finite := embedded.isfinite().all(1)).all():
        raise RewardError(int(batch["uid"][~finite][0]), "its embedding is not finite")
    facts = torch.stack([batch["success"], batch["env_task_id"]], 1).double()
    table = gathered(torch.cat([facts, embedded], 1), call, worker).numpy()
    success, tasks = table[:, 0].astype(bool), table[:, 1].astype(np.int64)
    progress = measure_progress(table[:, 2:], success, tasks, settings)
    failed = ~batch["success"]
    scores, distances = (torch.from_numpy(each[call.positions]) for each in (progress.scores, progress.distances))
    scored = Batch({"uid": batch["uid"], "scores": scores, "progress_distance": distances}, batch_size=[len(batch)])
    num_failed = int(failed.sum())
    failure_score = scores[failed].mean().item() if num_failed else 0.0
    metrics = {
        "progress/failure_score": mean(failure_score, num_failed),
        "progress/num_centres": mean(progress.num_centres),
        "progress/num_unreached_tasks": mean(progress.num_unreached),
    }
    return NodeOutput(scored, metrics)


def gathered(rows: torch.Tensor, call: NodeContext, worker: Reducer) -> torch.Tensor:
    """Return the rows of all ranks in the order of the whole batch: each adds its own to zeros of the others."""
    table = rows.new_zeros(call.total_rows, rows.shape[1])
    table[torch.from_numpy(call.positions)] = rows
    return worker.all_reduce(table)
