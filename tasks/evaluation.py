"""Nodes of evaluation: how good the policy is on goals or prompts it never trained on."""

import time
from pathlib import Path
from typing import Any

from embodyflow.config.embodied import EmbodiedConfig
from embodyflow.config.grouped import GroupedConfig
from embodyflow.data.batches import to_batch, to_columns
from embodyflow.data.metrics import Metric, mean
from embodyflow.nodes.context import NodeContext
from embodyflow.nodes.declarations import node
from embodyflow.nodes.engines import EmbodiedEngine, EpisodeEngine, EpisodeT
from embodyflow.record.episode_record import read_iteration
from embodyflow.types import Batch, NodeOutput
from tasks.rewards import judge


def evaluate_policy(
    batch: Batch | None, config: Any = None, *, worker: EpisodeEngine[EpisodeT], call: NodeContext, **kwargs: Any
) -> NodeOutput:
    """Play this rank's share of the evaluation; ``config["mode"]`` is ``"greedy"`` or ``"sampled"``."""
    started = time.perf_counter()
    mode = config["mode"]
    # The draws do not depend on the iteration: evaluations of one run differ by their weights alone.
    draws = None if mode == "greedy" else (call.seed, "evaluate")
    played = to_batch(worker.play(worker.evaluation_episodes(mode), "eval", draws))
    rows, judged, examples = judge(played, "eval", worker)
    metrics = {f"eval/{mode}_{name.partition('/')[2]}": metric for name, metric in judged.items()} | {
        # Several answers to one prompt tell less than as many prompts, so the interval counts prompts.
        f"eval/{mode}_success_rate": mean(rows["success"].double().mean(), len(rows["group_id"].unique())),
        f"eval/{mode}_episode_steps": mean(rows["num_steps"].double().mean(), len(rows)),
        f"perf/evaluate_{mode}_seconds": mean(time.perf_counter() - started),
        **_by_task(rows, f"eval/{mode}_success_rate", worker.config),
        **worker.fault_metrics(),
    }
    return NodeOutput(None, metrics, {"examples": examples, **_solved_at_reset(played)})


def _solved_at_reset(rows: Batch) -> dict[str, set[tuple[int, int]]]:
    """Return the goals that were reached before the policy acted, as pairs of task index and goal; none of prompts."""
    if "solved_at_reset" not in set(rows.keys()):
        return {}
    solved = rows[rows["solved_at_reset"]]
    return {"solved_at_reset": set(zip(solved["env_task_id"].tolist(), solved["goal"].tolist(), strict=True))}


def measure_warm_start(
    batch: Batch | None, config: Any = None, *, worker: EpisodeEngine[EpisodeT], call: NodeContext, **kwargs: Any
) -> NodeOutput:
    """Play this rank's share of the held-out goals or prompts, sampling actions as training does."""
    # The draws do not depend on the number of steps: measurements of one warm start differ by its weights alone.
    played = to_batch(worker.play(worker.held_out_episodes(), "demo", (call.seed, "warm start")))
    rows, _, _ = judge(played, "demo", worker)
    metrics = {"sft/success_rate": mean(rows["success"].double().mean(), len(rows)), **worker.fault_metrics()}
    return NodeOutput(None, metrics)


def _by_task(rows: Batch, name: str, config: GroupedConfig) -> dict[str, Metric]:
    """Return each task's success rate as ``name/<task>``; no metrics for a job with fewer than two tasks."""
    if not isinstance(config, EmbodiedConfig) or len(config.env.tasks) == 1:
        return {}
    by_task = {task: rows["success"][rows["env_task_id"] == i] for i, task in enumerate(config.env.tasks)}
    return {f"{name}/{task}": mean(each.double().mean(), len(each)) for task, each in by_task.items() if len(each)}


def record_video(batch: Batch | None, config: Any = None, *, worker: EmbodiedEngine, **kwargs: Any) -> NodeOutput:
    """Film a few evaluation episodes on rank 0; ``config`` has ``path`` and ``num_episodes``."""
    problem = None
    if worker.rank == 0:
        problem = worker.record_video(Path(config["path"]), config["num_episodes"])
    return NodeOutput(None, info={"problem": problem})


EPISODE = ("uid", "group_id", "env_task_id", "goal", "seed", "success", "num_steps", "episode_return", "terminated")
"""Columns of an evaluated episode that are kept besides its actions."""


@node(reads=(), writes=(*EPISODE, "truncated", "actions", "loss_mask"))
def play_evaluation(
    batch: Batch | None, config: Any = None, *, worker: EmbodiedEngine, call: NodeContext, **kwargs: Any
) -> NodeOutput:
    """Play this rank's evaluation goals of the task with index ``config["task"]`` in ``config["mode"]``.

    The rows have no observations: a replay of goal and actions shows them again.
    """
    mode = config["mode"]
    draws = None if mode == "greedy" else (call.seed, "evaluate")
    episodes = worker.evaluation_episodes(mode, config["task"])
    rows = to_batch(worker.play(episodes, "eval", draws, call.journal(worker.rank)))
    success = rows["success"].double()
    metrics = {
        "eval/success_rate": mean(success.mean() if len(rows) else 0.0, len(rows)),
        "eval/episode_steps": mean(rows["num_steps"].double().mean() if len(rows) else 0.0, len(rows)),
    }
    kept = rows.select(*EPISODE, "truncated", "actions", "loss_mask")
    return NodeOutput(kept, metrics, {**_solved_at_reset(rows)})


def observe(batch: Batch | None, config: Any = None, *, worker: EmbodiedEngine, **kwargs: Any) -> NodeOutput:
    """Report a digest of each task's first observation, and the digests of all ranks."""
    seen = worker.first_observations()
    return NodeOutput(None, info={"tasks": seen, "digests": {(task, each["digest"]) for task, each in seen.items()}})


def contact_sheet(batch: Batch | None, config: Any = None, *, worker: EmbodiedEngine, **kwargs: Any) -> NodeOutput:
    """Draw successes and failures on rank 0, from the rows or from the recorded episodes in ``config["episodes"]``.

    ``config`` also has ``path``, the file of the picture, and ``split``, the split of the goals.
    """
    problem = None
    if worker.rank == 0:
        from embodyflow.rollouts.contact_sheet import draw_contact_sheet  # simulators, which the trainer does without

        episodes = to_columns(batch) if batch is not None else read_iteration(Path(config["episodes"]))
        problem = draw_contact_sheet(worker.config, episodes, Path(config["path"]), config["split"])
    return NodeOutput(None, info={"problem": problem})
