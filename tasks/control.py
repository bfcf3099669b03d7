"""Nodes of control tasks: steps instead of episodes, with the environment's own rewards."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from embodyflow.data.batches import to_batch
from embodyflow.data.metrics import Metric, mean, merge_metrics, total
from embodyflow.data.plans.partition import Share
from embodyflow.nodes.context import NodeContext
from embodyflow.nodes.declarations import node
from embodyflow.nodes.engines import ControlEngine, TrainerEngine
from embodyflow.nodes.evaluation_parts import Part, part_to_play, parts_of, shares_of
from embodyflow.types import Batch, NodeOutput
from tasks.critic import compute_value

DECISION_COLUMNS = ("state", "action_tokens", "log_probs", "loss_mask", "advantages", "values", "returns")
"""Columns with one entry per decision, [N, T, ...]."""

RUNNING_RETURNS = "running_returns"
"""Column with one entry per decision that only the rows of a policy that scales rewards have."""

ROW_COLUMNS = ("group_id", "policy_version", "instruction_ids")
"""Columns with one entry per row that every decision of the row repeats."""


@node(
    reads=(),
    writes=(
        *("uid", "group_id", "policy_version", "seed", "instruction_ids"),
        *("state", "action_tokens", "log_probs", "loss_mask", "rewards", "num_steps", "final_state", "terminated"),
    ),
)
def collect_steps(
    batch: Batch | None, config: Any = None, *, worker: ControlEngine, call: NodeContext, **kwargs: Any
) -> NodeOutput:
    """Step this rank's environments with the current policy; ``rollout/reward`` covers the episodes that ended."""
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
        metrics["rollout/reward"] = mean(float(np.mean(finished.returns)), num_episodes)
        metrics["rollout/episode_steps"] = mean(float(np.mean(finished.lengths)), num_episodes)
    if finished.successes:
        metrics["rollout/success_rate"] = mean(float(np.mean(finished.successes)), num_episodes)
    return NodeOutput(to_batch(rows), metrics)


@node(reads=(), writes=())
def evaluate_returns(
    batch: Batch | None, config: Any = None, *, worker: ControlEngine, call: NodeContext, **kwargs: Any
) -> NodeOutput:
    """Play this rank's share of ``evaluation.num_episodes`` deterministically; report their returns and lengths.

    Beside training, ``config`` has the entries of :mod:`embodyflow.nodes.evaluation_parts`.
    """
    config, started = config or {}, time.perf_counter()
    shares = [
        _evaluation_parts(share, config, worker, call) for share in shares_of(config, worker.rank, worker.world_size)
    ]
    if "part" in config:
        return _play_part(shares[0], config["part"], worker)
    metrics = merge_metrics(_returns_of(parts, worker) for parts in shares)
    metrics["perf/evaluate_returns_seconds"] = mean(time.perf_counter() - started)
    return NodeOutput(None, metrics | worker.fault_metrics())


def _evaluation_parts(
    share: Share, config: Mapping[str, Any], worker: ControlEngine, call: NodeContext
) -> list[Part[int]]:
    evaluation = worker.config.evaluation
    assert evaluation is not None
    episodes = range(share.index, evaluation.num_episodes, share.count)
    return parts_of(episodes, share, config, call, is_divisible=True)


def _play_part(parts: Sequence[Part[int]], index: int, worker: ControlEngine) -> NodeOutput:
    if (part := part_to_play(parts, index)) is not None:
        worker.evaluate(part.episodes, part.journal)
    unplayed = {worker.rank} if index + 1 < len(parts) else set()
    return NodeOutput(None, worker.fault_metrics(), {"unplayed": unplayed})


def _returns_of(parts: Sequence[Part[int]], worker: ControlEngine) -> dict[str, Metric]:
    played = [worker.evaluate(part.episodes, part.journal) for part in parts]
    returns = np.array([value for each in played for value in each.returns])
    lengths = [length for each in played for length in each.lengths]
    successes = [success for each in played for success in each.successes]
    count = len(returns)
    found = {"eval/greedy_success_rate": mean(float(np.mean(successes)), count)} if successes else {}
    return found | {
        "eval/return": mean(float(returns.mean()) if count else 0.0, count),
        "eval/squared_return": mean(float(np.square(returns).mean()) if count else 0.0, count),
        "eval/episode_steps": mean(float(np.mean(lengths)) if count else 0.0, count),
    }


@node(
    reads=("state", "loss_mask", "final_state", "terminated", "instruction_ids"), writes=("values", "bootstrap_values")
)
def value_steps(batch: Batch, config: Any = None, *, worker: TrainerEngine, **kwargs: Any) -> NodeOutput:
    """Estimate the value before each step, and the bootstrap value after the last step of each row.

    The bootstrap value is 0 where the episode terminated. Where a time limit or the end of the iteration cuts the
    episode, it is the critic's value of the final state (Pardo et al. 2018, "Time Limits in Reinforcement Learning",
    arXiv:1712.00378).

    A policy that scales rewards gets its rewards scaled here, since values estimate sums of scaled rewards.
    """
    if RUNNING_RETURNS in set(batch.keys()):
        batch["rewards"] = worker.scaled_rewards(batch)
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


@node(reads=("uid", "seed", *ROW_COLUMNS, *DECISION_COLUMNS), writes=())
def split_decisions(batch: Batch, config: Any = None, **kwargs: Any) -> NodeOutput:
    """Make every decision a row of its own, so that mini-batches are drawn over decisions; from here on T is 1.

    Each decision gets its own seed, so a loss that draws tokens draws them independently within the former row.
    """
    decided = batch["loss_mask"].any(-1)
    row, step = decided.nonzero(as_tuple=True)
    names = [*DECISION_COLUMNS, *({RUNNING_RETURNS} & set(batch.keys()))]
    columns: dict[str, torch.Tensor] = {name: batch[name][decided].unsqueeze(1) for name in names}
    columns |= {name: batch[name][row] for name in ROW_COLUMNS}
    columns["uid"] = batch["uid"][row] + step
    columns["seed"] = batch["seed"][row] ^ columns["uid"]
    return NodeOutput(Batch(columns, batch_size=[len(row)]))
