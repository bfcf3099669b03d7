"""Nodes of evaluation: how good the policy is on goals or prompts it never trained on."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from embodyflow.config.grouped import GroupedConfig
from embodyflow.config.robots.embodied import EmbodiedConfig
from embodyflow.data.batches import Columns, to_batch, to_columns
from embodyflow.data.metrics import Metric, as_metrics, mean, merge_metrics
from embodyflow.data.padding import to_padded, to_ragged
from embodyflow.data.plans.partition import Share
from embodyflow.data.tables import concatenate
from embodyflow.nodes.context import NodeContext
from embodyflow.nodes.declarations import node
from embodyflow.nodes.engines import EmbodiedEngine, EpisodeEngine, EpisodeT
from embodyflow.nodes.evaluation_parts import Part, part_to_play, parts_of, shares_of
from embodyflow.record.episodes.episode_record import read_iteration
from embodyflow.types import Batch, NodeOutput
from tasks.rewards import judge

Draws = tuple[int | str, ...]


def evaluate_policy(
    batch: Batch | None, config: Any = None, *, worker: EpisodeEngine[EpisodeT], call: NodeContext, **kwargs: Any
) -> NodeOutput:
    """Play this rank's share of the evaluation; ``config["mode"]`` is ``"greedy"`` or ``"sampled"``.

    Beside training, ``config`` also has the entries of :mod:`embodyflow.nodes.evaluation_parts`.
    """
    mode = config["mode"]
    # The draws do not depend on the iteration: evaluations of one run differ by their weights alone.
    draws = None if mode == "greedy" else (call.seed, "evaluate")
    owned = shares_of(config, worker.rank, call.num_ranks or worker.world_size)
    if not config.keys() & {"shares", "rows_per_part"}:
        [share] = owned
        episodes = worker.evaluation_episodes(mode, share=share)
        return _evaluated(mode, worker, lambda: worker.play(episodes, "eval", draws))
    shares = [_parts(share, config, worker, call) for share in owned]
    if "part" in config:
        return _play_part(shares[0], config["part"], draws, worker)
    return _joined([_evaluated(mode, worker, partial(_play_parts, parts, draws, worker)) for parts in shares])


def _parts(
    share: Share, config: Mapping[str, Any], worker: EpisodeEngine[EpisodeT], call: NodeContext
) -> list[Part[EpisodeT]]:
    episodes = worker.evaluation_episodes(config["mode"], share=share)
    return parts_of(episodes, share, config, call, is_divisible=worker.is_divisible())


def _play_part(
    parts: Sequence[Part[EpisodeT]], index: int, draws: Draws | None, worker: EpisodeEngine[EpisodeT]
) -> NodeOutput:
    """Play one part, whose rows a later call finds in its journal."""
    if (part := part_to_play(parts, index)) is not None:
        worker.play(part.episodes, "eval", draws, part.journal)
    unplayed = {worker.rank} if index + 1 < len(parts) else set()
    return NodeOutput(None, worker.fault_metrics(), {"unplayed": unplayed})


def _play_parts(parts: Sequence[Part[EpisodeT]], draws: Draws | None, worker: EpisodeEngine[EpisodeT]) -> Columns:
    """Return the rows of all parts, from their journals as far as an earlier call has played them."""
    played = [worker.play(part.episodes, "eval", draws, part.journal) for part in parts]
    if len(played) == 1:
        return played[0]
    return cast(Columns, to_padded(concatenate([to_ragged(each) for each in played])))


def _joined(shares: Sequence[NodeOutput]) -> NodeOutput:
    """Join the results of shares as those of ranks are joined."""
    first, metrics = shares[0].info, merge_metrics(as_metrics(share.metrics) for share in shares)
    sets = [name for name, value in first.items() if isinstance(value, set)]
    united = {name: set().union(*(share.info[name] for share in shares)) for name in sets}
    return NodeOutput(None, metrics, {**first, **united})


def _evaluated(mode: str, worker: EpisodeEngine[EpisodeT], play: Callable[[], Columns]) -> NodeOutput:
    """Play and judge episodes; return the rates of success over them."""
    started = time.perf_counter()
    played = to_batch(play())
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

    ``config`` also has ``path``, the file of the picture, ``animation``, that of an animation or ``None``, and
    ``split``, the split of the goals.
    """
    problem = None
    if worker.rank == 0:
        from embodyflow.rollouts.embodied.contact_sheet import (
            draw_contact_sheet,  # simulators, which the trainer does without
        )

        episodes = to_columns(batch) if batch is not None else read_iteration(Path(config["episodes"]))
        path, animation = Path(config["path"]), config.get("animation")
        animated = None if animation is None else Path(animation)
        problem = draw_contact_sheet(worker.config, episodes, path, config["split"], animation=animated)
    return NodeOutput(None, info={"problem": problem})
