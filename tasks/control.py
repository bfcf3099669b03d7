"""Control tasks: steps instead of episodes, with the environment's own rewards."""

import time
from typing import Any

import numpy as np
import torch

from embodyflow.data.batches import to_batch
from embodyflow.data.metrics import mean, total
from embodyflow.nodes.declarations import node
from embodyflow.types import Batch, NodeOutput
from tasks.critic import compute_value

OF_A_DECISION = ("state", "action_tokens", "log_probs", "loss_mask", "advantages", "values", "returns")
OF_A_ROW = ("group_id", "policy_version", "instruction_ids")


@node(
    reads=(),
    writes=(
        *("uid", "group_id", "policy_version", "seed", "instruction_ids"),
        *("state", "action_tokens", "log_probs", "loss_mask", "rewards", "num_steps", "final_state", "terminated"),
    ),
)
def collect_steps(batch: Batch | None, config: Any = None, *, worker: Any, call: Any, **kwargs: Any) -> NodeOutput:
    """Step this rank's environments with the present policy; ``rollout/reward`` is of the episodes that ended."""
    started = time.perf_counter()
    folder = None if call.run_folder is None else call.run_folder / "open_episodes"
    rows, finished = worker.collect(call.iteration, (call.seed, call.iteration, call.node_id), folder)
    num_steps, num_episodes = int(rows["num_steps"].sum()), len(finished.returns)
    metrics = {
        "rollout/num_steps": total(num_steps),
        "rollout/num_episodes": total(num_episodes),
        "perf/env_steps_per_second": total(num_steps / (time.perf_counter() - started)),
        **worker.fault_metrics(),
    }
    if num_episodes:
        metrics["rollout/reward"] = mean(np.mean(finished.returns), num_episodes)
        metrics["rollout/episode_steps"] = mean(np.mean(finished.lengths), num_episodes)
    return NodeOutput(to_batch(rows), metrics)


@node(
    reads=("state", "loss_mask", "final_state", "terminated", "instruction_ids"), writes=("values", "bootstrap_values")
)
def value_steps(batch: Batch, config: Any = None, *, worker: Any, **kwargs: Any) -> NodeOutput:
    """Estimate the return from before each step on, and what was to come after a row's last one.

    Nothing was where the episode terminated. A row also ends where a time limit or the iteration cuts its episode, and
    there is more to come (Pardo et al. 2018, "Time Limits in Reinforcement Learning", arXiv:1712.00378).
    """
    after = Batch(
        {
            "state": batch["final_state"].unsqueeze(1),
            "loss_mask": ~batch["terminated"].view(-1, 1, 1),
            "instruction_ids": batch["instruction_ids"],
        },
        batch_size=[len(batch)],
    )
    batch["bootstrap_values"] = worker.values(after).squeeze(1)
    return compute_value(batch, worker=worker)


@node(reads=("uid", "seed", *OF_A_ROW, *OF_A_DECISION), writes=())
def split_decisions(batch: Batch, config: Any = None, **kwargs: Any) -> NodeOutput:
    """Make every decision a row, so that mini-batches are drawn of decisions; T is 1 from here on.

    Each gets a seed of its own: what is drawn of its token is not what is drawn of its row's others.
    """
    decided = batch["loss_mask"].any(-1)
    row, step = decided.nonzero(as_tuple=True)
    columns: dict[str, torch.Tensor] = {name: batch[name][decided].unsqueeze(1) for name in OF_A_DECISION}
    columns |= {name: batch[name][row] for name in OF_A_ROW}
    columns["uid"] = batch["uid"][row] + step
    columns["seed"] = batch["seed"][row] ^ columns["uid"]
    return NodeOutput(Batch(columns, batch_size=[len(row)]))
