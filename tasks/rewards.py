"""Nodes of rewards and advantages: what the episodes are worth, absolutely and compared with their siblings."""

from typing import Any

import torch

from embodyflow.algorithms.advantages import AdvantageInputs, compute_advantages
from embodyflow.algorithms.credit.shaping import place_on_last_token
from embodyflow.algorithms.groups import Groups
from embodyflow.algorithms.kl import kl_penalty
from embodyflow.algorithms.masked import split_steps
from embodyflow.data.batches import to_batch
from embodyflow.data.metrics import Metric, mean, total
from embodyflow.nodes.context import NodeContext
from embodyflow.nodes.declarations import node
from embodyflow.nodes.engines import Engine, EpisodeEngine, EpisodeT, Reducer, ResponseJudge, TrainerEngine
from embodyflow.types import Batch, NodeOutput


@node(reads=("success", "loss_mask"), writes=("rewards",))
def compute_reward(batch: Batch, config: Any = None, *, worker: Engine | None = None, **kwargs: Any) -> NodeOutput:
    """Place each row's reward on its last executed token; an episode's reward is its outcome, 1 or 0.

    Rewards of an agent's turns are added at the last tokens of the turns. Where agents have outcomes of their own,
    these take the place of the episode's, each at the last token of its agent.
    """
    return NodeOutput(*reward(batch, worker))


def reward(batch: Batch, worker: Engine | None) -> tuple[Batch, dict[str, Metric]]:
    """Return the rows with ``rewards``, and metrics."""
    batch, metrics, _ = judge(batch, "train", worker)
    mask, scores = batch["loss_mask"], batch.get("scores", batch["success"].float())
    batch["rewards"] = place_on_last_token(scores, mask.flatten(1)).view(mask.shape)
    if "token_turn_reward" in set(batch.keys()):
        own = batch["agents_rewarded"].view(-1, 1, 1)
        outcomes = torch.where(own, batch["token_agent_reward"], batch["rewards"])
        batch["rewards"] = outcomes + batch["token_turn_reward"]
    score = scores.mean().item() if len(batch) else 0.0
    return batch, metrics | {"reward/score": mean(score, len(batch))}


def judge(batch: Batch, split: str, worker: Engine | None) -> tuple[Batch, dict[str, Metric], list[dict[str, Any]]]:
    """Return the rows with ``success``, metrics, and examples for people.

    Episodes come with their ``success``; responses are judged here.

    Raises:
        TypeError: The rows have no ``success`` and the engine has no reward function.
    """
    if "success" in set(batch.keys()):
        return batch, {}, []
    if not isinstance(worker, ResponseJudge):
        raise TypeError(f"{type(worker).__name__} has no method judge, which rows without success need")
    return worker.judge(batch, split)


@node(reads=("group_id",), writes=("baseline",))
def compute_baseline(
    batch: Batch, config: Any = None, *, worker: EpisodeEngine[EpisodeT], call: NodeContext, **kwargs: Any
) -> NodeOutput:
    """Write the reward of a greedy response or episode of each group, the baseline of ReMax (arXiv:2310.10505).

    The greedy rows begin as their groups do, with the weights that the groups were played with. Only their rewards stay
    in the batch; the trainer never sees the rows. If a goal is quarantined in the meantime, its baseline is that of
    another goal, which leaves the gradient unbiased.
    """
    episodes = worker.first_of_groups(batch)
    greedy = to_batch(worker.play(episodes, "train", None, call.journal(worker.rank)))
    greedy, _ = reward(greedy, worker)
    rewards, groups = greedy["rewards"].flatten(1).sum(1), Groups(batch["group_id"])
    of_group = torch.zeros(len(groups), dtype=rewards.dtype)
    of_group[torch.searchsorted(batch["group_id"].unique(), greedy["group_id"])] = rewards
    batch["baseline"] = of_group[groups.index]
    average = rewards.mean().item() if len(greedy) else 0.0
    metrics = {"baseline/reward": mean(average, len(greedy)), "baseline/num_rows": total(len(greedy))}
    return NodeOutput(batch, metrics | worker.fault_metrics())


@node(reads=("loss_mask", "old_log_probs", "ref_log_probs"), writes=("kl_penalty",))
def compute_kl_penalty(
    batch: Batch, config: Any = None, *, worker: TrainerEngine, call: NodeContext, **kwargs: Any
) -> NodeOutput:
    """Compute the KL penalty that ``algorithm.kl.placement=reward`` subtracts from each token's reward.

    The trainer holds the coefficient, so the node runs on the trainer group, after ``compute_ref_log_prob``.
    """
    mask = batch["loss_mask"].flatten(1)
    log_probs, reference = batch["old_log_probs"].flatten(1), batch["ref_log_probs"].flatten(1)
    coef, estimator = worker.kl_coef_in(call.iteration), worker.config.algorithm.kl.estimator
    penalty = kl_penalty(log_probs, reference, mask, coef, estimator)
    batch["kl_penalty"] = penalty.view(batch["loss_mask"].shape)
    num_tokens = int(mask.sum())
    return NodeOutput(batch, {"reward/kl_penalty": mean(penalty.sum().item() / max(num_tokens, 1), num_tokens)})


@node(reads=("rewards", "loss_mask"), writes=("token_baseline",))
def compute_agent_baseline(
    batch: Batch, config: Any = None, *, worker: TrainerEngine, call: NodeContext, **kwargs: Any
) -> NodeOutput:
    """Write the running baseline of each token's agent, which ``algorithm.advantage=rae`` subtracts.

    The trainer holds the baselines and takes the rows into them when it trains, so the node runs on the trainer group.
    It reads ``token_agent`` and ``agents_rewarded``, which the rows of agents have.

    Raises:
        ValueError: An episode gives its agents no outcomes of their own.
    """
    _require_outcomes(batch, f"algorithm.advantage={worker.config.algorithm.advantage}")
    batch["token_baseline"] = worker.agent_baselines(batch, positions=call.positions, total_rows=call.total_rows)
    return NodeOutput(batch)


def _require_outcomes(batch: Batch, setting: str) -> None:
    if not batch["agents_rewarded"].all():
        uid = int(batch["uid"][~batch["agents_rewarded"]][0])
        raise ValueError(f"{setting}: episode {uid} has no agent_rewards; the workflow must give them")


@node(reads=("rewards", "loss_mask", "group_id"), writes=("advantages", "returns"))
def compute_advantage(batch: Batch, config: Any = None, *, worker: Reducer, **kwargs: Any) -> NodeOutput:
    """Compute advantages by the configured estimator, one step per decision; a group's rows are on one rank.

    Where each action of a decision has a value (``critic.level=action``), the actions are the steps.

    A column ``kl_penalty`` is subtracted from the rewards first. ``token_turn`` tells the turns of an agent, and
    ``token_agent`` the agents.

    Raises:
        ValueError: ``algorithm.per_agent`` is true, and an episode gives its agents no outcomes of their own.
    """
    mask, rewards, algorithm = batch["loss_mask"], batch["rewards"], worker.config.algorithm
    if algorithm.per_agent:
        _require_outcomes(batch, "algorithm.per_agent=true")
    if "kl_penalty" in set(batch.keys()):
        rewards = rewards - batch["kl_penalty"]
    values = batch.get("values", None)
    steps = split_steps(mask, values)
    inputs = AdvantageInputs(
        rewards=split_steps(rewards.masked_fill(~mask, 0.0), values).sum(-1).flatten(1),
        mask=steps.any(-1).flatten(1),
        group_ids=batch["group_id"],
        values=None if values is None else values.flatten(1),
        bootstrap_values=batch.get("bootstrap_values", None),
        baselines=batch.get("baseline", None),
        token_baselines=batch["token_baseline"][..., 0] if "token_baseline" in set(batch.keys()) else None,
        turns=batch["token_turn"].amax(-1) if "token_turn" in set(batch.keys()) else None,
        agents=batch["token_agent"].amax(-1) if "token_agent" in set(batch.keys()) else None,
        all_reduce=worker.all_reduce,
    )
    advantages, returns = compute_advantages(inputs, algorithm)
    of_steps = advantages.reshape(steps.shape[:-1]).unsqueeze(-1)
    batch["advantages"] = (of_steps * steps).flatten(2)  # the tokens of a step share its advantage
    batch["returns"] = returns if values is None else returns.reshape(values.shape)
    num_tokens = int(mask.sum())
    size = batch["advantages"].abs().sum().item() / num_tokens if num_tokens else 0.0
    return NodeOutput(batch, {"advantage/abs_mean": mean(size, num_tokens)})
