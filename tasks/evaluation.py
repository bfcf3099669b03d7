"""How good the policy is on goals it was never trained on."""

import time
from pathlib import Path
from typing import Any

from embodyflow.data.metrics import mean
from embodyflow.types import Batch, NodeOutput


def evaluate_policy(batch: Batch | None, config: Any = None, *, worker: Any, call: Any, **kwargs: Any) -> NodeOutput:
    """Play this rank's evaluation goals; ``config["mode"]`` is ``"greedy"`` or ``"sampled"``."""
    started = time.perf_counter()
    mode = config["mode"]
    # The draws leave the iteration out: evaluations of one run differ by their weights alone.
    draws = None if mode == "greedy" else (call.seed, "evaluate")
    rows = worker.play(worker.evaluation_episodes(), "eval", draws)
    count = len(rows["uid"])
    return NodeOutput(
        None,
        {
            f"eval/{mode}_success_rate": mean(rows["success"].mean(), count),
            f"eval/{mode}_episode_steps": mean(rows["num_steps"].mean(), count),
            f"perf/evaluate_{mode}_seconds": mean(time.perf_counter() - started),
        },
    )


def record_video(batch: Batch | None, config: Any = None, *, worker: Any, call: Any, **kwargs: Any) -> NodeOutput:
    """Film a few evaluation episodes on rank 0; ``config`` has ``path`` and ``num_episodes``."""
    problem = None
    if worker.rank == 0:
        problem = worker.record_video(Path(config["path"]), config["num_episodes"])
    return NodeOutput(None, info={"problem": problem})
