"""Nodes that play episodes: the policy's for training, the scripted expert's for the warm start."""

import time
from typing import Any

import numpy as np

from embodyflow.data.batches import Columns, to_batch, to_columns
from embodyflow.data.metrics import Metric, mean, total
from embodyflow.data.segment import Segment
from embodyflow.nodes.context import NodeContext
from embodyflow.nodes.declarations import node
from embodyflow.nodes.engines import EpisodeEngine, EpisodeT, InterruptibleEngine
from embodyflow.types import Batch, NodeOutput


@node(
    reads=(),
    writes=(
        *("uid", "group_id", "policy_version", "seed", "env_task_id", "goal", "instruction_ids"),
        *("action_tokens", "actions", "log_probs", "loss_mask", "num_steps", "episode_return"),
        *("success", "terminated", "truncated"),
    ),
)
def generate(
    batch: Batch | None, config: Any = None, *, worker: EpisodeEngine[EpisodeT], call: NodeContext, **kwargs: Any
) -> NodeOutput:
    """Play this rank's groups of episodes with the current policy, sampling its actions."""
    if call.segment is not None:
        return _generate_segment(worker, call, call.segment)
    started = time.perf_counter()
    episodes = worker.training_episodes(call.seed, call.iteration)
    rows = worker.play(episodes, "train", (call.seed, call.iteration, call.node_id), call.journal(worker.rank))
    metrics = rollout_metrics(rows, time.perf_counter() - started) | worker.fault_metrics()
    return NodeOutput(to_batch(rows), metrics)


def _generate_segment(worker: EpisodeEngine[EpisodeT], call: NodeContext, segment: Segment) -> NodeOutput:
    """Sample a segment of this rank's rows, and pass them on if it is the last.

    Raises:
        TypeError: The rows of this engine cannot go on with newer weights.
    """
    if not isinstance(worker, InterruptibleEngine):
        raise TypeError(f"{type(worker).__name__} has no method play_segment, which rollout.interrupt needs")
    started, episodes = time.perf_counter(), worker.training_episodes(call.seed, call.iteration)
    here = call.journal(worker.rank, segment.index)
    before = call.journal(worker.rank, segment.index - 1) if segment.index else None
    assert here is not None, "nodes with segments keep their rows"
    draws = (call.seed, call.iteration, call.node_id)
    rows, num_tokens = worker.play_segment(episodes, draws, segment, (before, here))
    speed = {"perf/env_steps_per_second": total(num_tokens / (time.perf_counter() - started))}
    return NodeOutput(to_batch(rows), episode_metrics(rows) | speed) if segment.is_last else NodeOutput(None, speed)


@node(reads=("uid", "num_steps"), writes=())
def gather_groups(batch: Batch, config: Any = None, **kwargs: Any) -> NodeOutput:
    """Gather this rank's share of the groups that an iteration trains on, which were played one by one."""
    columns = {name: column for name, column in to_columns(batch).items() if isinstance(column, np.ndarray)}
    return NodeOutput(batch, episode_metrics(columns))


@node(reads=(), writes=("state", "actions", "num_steps", "uid", "instruction_ids"))
def demonstrate(
    batch: Batch | None, config: Any = None, *, worker: EpisodeEngine[EpisodeT], **kwargs: Any
) -> NodeOutput:
    """Record demonstrations: successful episodes of the scripted expert, or responses of the prompt source."""
    rows = worker.demonstrate()
    num_demos = len(rows["uid"])
    steps = mean(rows["num_steps"].sum() / max(num_demos, 1), num_demos)
    metrics = {"sft/num_demos": total(num_demos), "sft/demo_steps": steps}
    return NodeOutput(to_batch(rows), metrics)


def rollout_metrics(rows: Columns, seconds: float) -> dict[str, Metric]:
    """Return metrics of played episodes; those named ``perf/`` differ from run to run."""
    speed = float(np.sum(rows["num_steps"])) / seconds
    return episode_metrics(rows) | {"perf/env_steps_per_second": total(speed)}


def episode_metrics(rows: Columns) -> dict[str, Metric]:
    """Return metrics of the outcomes of played episodes."""
    count = len(rows["uid"])
    steps = rows["num_steps"]
    outcomes = {"rollout/success_rate": "success", "rollout/reward": "episode_return"}  # a response has none yet
    return {name: mean(rows[column].mean(), count) for name, column in outcomes.items() if column in rows} | {
        "rollout/episode_steps": mean(steps.mean(), count),
        "rollout/num_episodes": total(count),
        "rollout/num_steps": total(int(np.sum(steps))),
    }
