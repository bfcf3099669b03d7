"""How good the policy is on goals it was never trained on."""

import time
from pathlib import Path
from typing import Any

from embodyflow.data.batches import to_batch
from embodyflow.data.metrics import mean
from embodyflow.types import Batch, NodeOutput
from tasks.rewards import judged


def evaluate_policy(batch: Batch | None, config: Any = None, *, worker: Any, call: Any, **kwargs: Any) -> NodeOutput:
    """Play this rank's evaluation goals; ``config["mode"]`` is ``"greedy"`` or ``"sampled"``."""
    started = time.perf_counter()
    mode = config["mode"]
    # The draws leave the iteration out: evaluations of one run differ by their weights alone.
    draws = None if mode == "greedy" else (call.seed, "evaluate")
    played = to_batch(worker.play(worker.evaluation_episodes(mode), "eval", draws))
    rows, of_rewards, examples = judged(played, "eval", worker)
    metrics = {f"eval/{mode}_{name.partition('/')[2]}": metric for name, metric in of_rewards.items()} | {
        # Several answers to one prompt are not as good as as many prompts: its interval counts these.
        f"eval/{mode}_success_rate": mean(rows["success"].double().mean(), len(rows["group_id"].unique())),
        f"eval/{mode}_episode_steps": mean(rows["num_steps"].double().mean(), len(rows)),
        f"perf/evaluate_{mode}_seconds": mean(time.perf_counter() - started),
        **worker.fault_metrics(),
    }
    return NodeOutput(None, metrics, {"examples": examples})


def record_video(batch: Batch | None, config: Any = None, *, worker: Any, call: Any, **kwargs: Any) -> NodeOutput:
    """Film a few evaluation episodes on rank 0; ``config`` has ``path`` and ``num_episodes``."""
    problem = None
    if worker.rank == 0:
        problem = worker.record_video(Path(config["path"]), config["num_episodes"])
    return NodeOutput(None, info={"problem": problem})
