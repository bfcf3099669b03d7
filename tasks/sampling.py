"""Nodes that choose the groups to train on."""

from collections.abc import Mapping
from typing import Any

import torch

from embodyflow.algorithms.credit.turns import Turns
from embodyflow.algorithms.filters import group_metrics, keep_mixed, keep_untruncated, keep_within
from embodyflow.algorithms.groups import Groups
from embodyflow.config.grouped import GroupedConfig
from embodyflow.config.pipeline import FilterConfig
from embodyflow.data.batches import join_rows, to_batch, to_columns
from embodyflow.data.metrics import Metric, mean, merge_metrics, total
from embodyflow.data.padding import to_padded, to_ragged
from embodyflow.data.plans.partition import consecutive_share
from embodyflow.data.rows_file import Journal
from embodyflow.data.surplus import draw_surplus
from embodyflow.errors import DamageError, SamplingError
from embodyflow.nodes.context import NodeContext
from embodyflow.nodes.declarations import node
from embodyflow.nodes.engines import Engine, EpisodeEngine, EpisodeT
from embodyflow.types import Batch, NodeOutput
from tasks.rewards import reward
from tasks.rollout import episode_metrics


@node(reads=("success", "truncated", "group_id"), writes=())
def filter_groups(batch: Batch, config: Any = None, *, worker: Engine, **kwargs: Any) -> NodeOutput:
    """Drop whole groups by their outcomes, by the rules of ``filter``.

    Dropped rows still count in the mean over rows or tokens of the policy's loss, to which they add nothing.
    ``config["uniform"]`` names the column that ``filter.drop_uniform`` compares, ``success`` by default. A group whose
    agents have different rewards in a turn is not uniform.
    """
    kept = _kept(batch, worker.config.filter, (config or {}).get("uniform", "success"))
    return NodeOutput(kept, _group_metrics(batch, kept) | {"groups/num_kept_rows": total(len(kept))})


@node(reads=("success", "truncated", "group_id"), writes=())
def dynamic_sampling(
    batch: Batch, config: Any = None, *, worker: EpisodeEngine[EpisodeT], call: NodeContext, **kwargs: Any
) -> NodeOutput:
    """Replace the groups that ``filter`` drops by others until ``filter.num_groups`` are kept.

    Every rank fills its share with rows left over by earlier iterations, then with rounds of new episodes, each with
    goals and draws of its own. Surplus rows wait for the next iteration. Dynamic sampling of DAPO (Yu et al. 2025,
    arXiv:2503.14476, section 3.2).

    If the policy succeeds in every episode played, there is nothing to learn from them: the rank continues with the
    rows it has, possibly none.

    Raises:
        SamplingError: Rows are missing after ``filter.max_rerolls`` rounds; the message says what to change.
    """
    rules, rollout = worker.config.filter, worker.config.rollout
    share = consecutive_share(rules.num_groups or rollout.num_groups, worker.rank, worker.world_size)
    wanted = len(share) * rollout.group_size
    played, kept, rerolled = batch, _kept(batch, rules), list[Mapping[str, Metric]]()
    waiting = _Surplus(call.surplus(worker.rank), call.policy_version - rules.max_staleness, call.iteration)
    stale = waiting.take(wanted - len(kept), kept)
    wanted -= len(stale)
    while len(kept) < wanted:
        if len(rerolled) == rules.max_rerolls:
            if played["success"].all():
                break
            raise SamplingError(_advice(played["success"], len(kept) + len(stale), len(stale) + wanted, worker.config))
        episodes = worker.training_episodes(call.seed, call.iteration, len(rerolled) + 1)
        journal = call.journal(worker.rank, len(rerolled) + 1)
        columns = worker.play(episodes, "train", (call.seed, call.iteration, call.node_id), journal)
        rows, outcomes = to_batch(columns), episode_metrics(columns)
        if "rewards" in set(batch.keys()):  # the graph computes rewards before this node
            rows, reward_metrics = reward(rows, worker)
            outcomes |= reward_metrics
        rerolled.append(outcomes)
        played, kept = join_rows([played, rows]), join_rows([kept, _kept(rows, rules)])
    metrics = _group_metrics(played, kept) | merge_metrics(rerolled) | worker.fault_metrics()
    waiting.leave(kept[wanted:])
    metrics["groups/num_kept_rows"] = total(len(kept[:wanted]) + len(stale))
    metrics["groups/num_rerolled"] = total((len(played) - len(batch)) // rollout.group_size)
    return NodeOutput(join_rows([kept[:wanted], stale]), metrics | waiting.metrics)


class _Surplus:
    """Rows left over by earlier iterations, for this one to use, and those it leaves.

    Each iteration writes a file of its own, so a repeated iteration finds the same rows.

    Args:
        files: Journals of the rows found and of the rows left; ``None`` keeps no rows.
        oldest: Smallest version of the policy whose rows may be used.
        iteration: Index of this iteration; the first finds no rows.
    """

    def __init__(self, files: tuple[Journal, Journal] | None, oldest: int, iteration: int) -> None:
        self._files, self._oldest, self._iteration = files, oldest, iteration
        self._left: list[Batch] = []
        self.metrics: dict[str, Metric] = {}

    def take(self, num_rows: int, like: Batch) -> Batch:
        """Return whole groups of at most ``num_rows`` rows in all; an empty batch has the columns of ``like``.

        Raises:
            DamageError: The rows of the previous iteration are missing or damaged.
        """
        tables = self._files[0].read() if self._files is not None else []
        if self._files is not None and len(tables) != min(self._iteration - 1, 1):
            previous = self._iteration - 1
            raise DamageError(
                f"the rows that iteration {previous} left over are missing or damaged; remove "
                f"checkpoints/iteration-{previous:06d} from the run folder and resume to repeat that iteration"
            )
        waiting = join_rows([like[:0], *(to_batch(to_padded(table)) for table in tables)])
        taken, left = draw_surplus(waiting["group_id"], waiting["policy_version"], num_rows, self._oldest)
        self._left = [waiting[torch.from_numpy(left)]]
        self.metrics = {
            "surplus/num_used": total(len(taken)),
            "surplus/num_expired": total(len(waiting) - len(taken) - len(left)),
        }
        return waiting[torch.from_numpy(taken)]

    def leave(self, rows: Batch) -> None:
        """Append rows to those that wait for the next iteration."""
        waiting = join_rows([*self._left, rows])
        if self._files is not None:
            self._files[1].replace(to_ragged(to_columns(waiting)))
        self.metrics["surplus/num_waiting"] = total(len(waiting) if self._files is not None else 0)


def _kept(batch: Batch, rules: FilterConfig, uniform: str = "success") -> Batch:
    success, groups = batch["success"], batch["group_id"]
    keep = keep_within(success, groups, rules.min_success, rules.max_success)
    if rules.drop_uniform:
        keep &= keep_mixed(batch[uniform], groups) | _differ_in_parts(batch)
    if rules.drop_truncated:
        keep &= keep_untruncated(batch["truncated"], groups)
    return batch[keep]


def _differ_in_parts(batch: Batch) -> torch.Tensor:
    """Return a mask of the rows in whose group the rewards of a turn, or those of an agent, differ, bool [N]."""
    differ = torch.zeros(len(batch), dtype=torch.bool)
    groups = Groups(batch["group_id"])
    for part in ("token_turn", "token_agent"):
        if f"{part}_reward" in set(batch.keys()) and batch[f"{part}_reward"].any():
            columns = (batch[name].flatten(1) for name in (f"{part}_reward", "loss_mask", part))
            for rewards in Turns.of(*columns).rewards.unbind(1):
                differ |= groups.mixed(rewards)[groups.index]
    return differ


def _group_metrics(played: Batch, kept: Batch) -> dict[str, Metric]:
    metrics = {
        name: mean(float(count / groups), float(groups))
        for name, (count, groups) in group_metrics(played["success"], played["group_id"]).items()
    }
    dropped = len(played["group_id"].unique()) - len(kept["group_id"].unique())
    return metrics | {"groups/num_dropped": total(dropped)}


def _advice(success: torch.Tensor, num_kept: int, num_wanted: int, config: GroupedConfig) -> str:
    rate, rounds = success.float().mean().item(), config.filter.max_rerolls
    found = f"{num_kept} of {num_wanted} rows are kept by filter after filter.max_rerolls={rounds} rounds"
    if rate > 0.5:
        cause = "the policy hardly ever fails: stop here, or raise rollout.temperature or rollout.group_size"
    else:
        cause = "the policy hardly ever succeeds: raise warm_start.num_demos, rollout.temperature or rollout.group_size"
    return f"{found}; {rate:.0%} of {len(success)} episodes succeeded. Lower filter.num_groups; {cause}"
