"""Advantage estimators: rewards to advantages and returns.

Shapes are [B, L], rows × tokens. The nodes pass decisions as tokens, with the rewards of each decision's chunk summed,
and expand the result. Rewards outside the mask are not read. Statistics are float64; results have the rewards' dtype.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from embodyflow.algorithms.algorithm_config import AlgorithmConfig
from embodyflow.algorithms.algorithm_registry import ADVANTAGES
from embodyflow.algorithms.credit.agents import AgentRows
from embodyflow.algorithms.credit.turns import Turns
from embodyflow.algorithms.groups import Groups
from embodyflow.algorithms.masked import AllReduce, one_rank, over_rows, whiten
from embodyflow.references import resolve


@dataclass(frozen=True)
class AdvantageInputs:
    """Inputs of an estimator.

    Attributes:
        rewards: Rewards, float [B, L].
        mask: Tokens that the policy chose, bool [B, L].
        group_ids: Group of each row, int64 [B]. All rows of a group are here; ranks may hold different groups.
        values: Critic's estimate before each token, float [B, L].
        bootstrap_values: Estimate after the last token, float [B]: 0 if the episode terminated, the critic's value of
            the final observation if it was truncated. Without it every row counts as terminated.
        baselines: Reward of the greedy response or episode of each row's group, float [B].
        token_baselines: Running baseline of each token's agent before the row's episode, float [B, L]; only ``rae``
            needs it.
        turns: Turn of an agent that each token belongs to, integers [B, L] from 1. Without it each row is one turn.
        agents: Agent that wrote each token, integers [B, L] from 1. Only ``algorithm.per_agent`` needs it.
        all_reduce: Sum over the ranks that hold the other rows of the batch.
    """

    rewards: Tensor
    mask: Tensor
    group_ids: Tensor
    values: Tensor | None = None
    bootstrap_values: Tensor | None = None
    baselines: Tensor | None = None
    token_baselines: Tensor | None = None
    turns: Tensor | None = None
    agents: Tensor | None = None
    all_reduce: AllReduce = one_rank


EstimatorFunction = Callable[[AdvantageInputs, AlgorithmConfig], tuple[Tensor, Tensor]]
"""An advantage estimator: returns ``(advantages, returns)``, two tensors [B, L]."""


def compute_advantages(inputs: AdvantageInputs, config: AlgorithmConfig) -> tuple[Tensor, Tensor]:
    """Return ``(advantages, returns)`` of the configured estimator.

    Args:
        inputs: Whole batch, or this rank's groups of it.
        config: Algorithm, which names the estimator.

    Returns:
        Two tensors [B, L] of the rewards' dtype, zero outside the mask.

    Raises:
        ValueError: An input or a result of a user's estimator is missing, has the wrong shape, or is not finite inside
            the mask. Or ``per_agent`` is true, and a token inside the mask has no agent.
    """
    _check(inputs)
    estimate: EstimatorFunction = resolve(ADVANTAGES.resolve(config.advantage).function)
    agents = AgentRows.of(inputs.mask, inputs.agents) if config.per_agent else None
    estimated = inputs if agents is None else _rows_of_agents(inputs, agents)
    given = _checked(config.advantage, estimate(estimated, config), estimated)
    advantages, returns = given if agents is None else map(agents.join, given)
    return advantages.to(inputs.rewards.dtype), returns.to(inputs.rewards.dtype)


def _rows_of_agents(inputs: AdvantageInputs, agents: AgentRows) -> AdvantageInputs:
    """Return inputs in which the tokens of each agent are a row, and the same agent's rows of a group are a group."""

    def rows(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor[agents.row]

    return replace(
        inputs,
        rewards=inputs.rewards[agents.row],
        mask=agents.mask,
        group_ids=agents.groups(inputs.group_ids),
        values=rows(inputs.values),
        bootstrap_values=rows(inputs.bootstrap_values),
        token_baselines=rows(inputs.token_baselines),
        turns=None if inputs.turns is None else agents.own_turns(inputs.turns),
        agents=None,
    )


def _checked(name: str, given: object, inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """Check the result of an estimator, which may be a user's: one advantage per row, say, would be broadcast."""
    if not isinstance(given, tuple) or len(given) != 2 or not all(isinstance(each, Tensor) for each in given):
        raise ValueError(f"algorithm.advantage={name}: returns {type(given).__name__}; allowed: (advantages, returns)")
    advantages, returns = given
    for kind, tensor in {"advantages": advantages, "returns": returns}.items():
        if tensor.shape != inputs.mask.shape:
            raise ValueError(
                f"algorithm.advantage={name}: returns {kind} {list(tensor.shape)}; allowed: {list(inputs.mask.shape)}, "
                "one per token"
            )
        if not torch.isfinite(tensor[inputs.mask]).all():
            raise ValueError(f"algorithm.advantage={name}: {kind} are not finite inside the mask")
    return advantages, returns


def _check(inputs: AdvantageInputs) -> None:
    if inputs.mask.dtype != torch.bool:
        raise ValueError(f"mask: dtype {inputs.mask.dtype}; allowed: torch.bool")
    num_rows, shape = len(inputs.rewards), inputs.rewards.shape
    expected = {
        "rewards": shape,
        "mask": shape,
        "values": shape,
        "group_ids": (num_rows,),
        "bootstrap_values": (num_rows,),
        "baselines": (num_rows,),
        "token_baselines": shape,
        "turns": shape,
        "agents": shape,
    }
    for name, size in expected.items():
        tensor = getattr(inputs, name)
        if tensor is None:
            continue
        if tensor.shape != size:
            raise ValueError(f"{name}: shape {list(tensor.shape)}; allowed: {list(size)}")
        inside = tensor[inputs.mask] if tensor.shape == shape else tensor
        if not torch.isfinite(inside).all():
            raise ValueError(f"{name}: not finite inside the mask")


def _row_scores(inputs: AdvantageInputs) -> Tensor:
    return inputs.rewards.double().masked_fill(~inputs.mask, 0.0).sum(1)


def _center(scores: Tensor, groups: Groups) -> Tensor:
    """Subtract each group's mean; a single row has no siblings to compare with and keeps its score."""
    return _subtract(groups.mean(scores), scores, groups)


def _subtract(baselines: Tensor, scores: Tensor, groups: Groups) -> Tensor:
    """Subtract each group's baseline, [G], from its scores, [B]; a single row keeps its score.

    Equal scores of a group become exactly 0: a mean is rounded, and GRPO would divide what is left of large scores by a
    deviation of the same size.
    """
    centered = scores - baselines.masked_fill(groups.single, 0.0)[groups.index]
    return centered.masked_fill(~(groups.mixed(scores) | groups.single)[groups.index], 0.0)


def _compare(
    inputs: AdvantageInputs, config: AlgorithmConfig, compare: Callable[[Tensor, Groups], Tensor]
) -> tuple[Tensor, Tensor]:
    """Return advantages of rows, or of an agent's turns, from a comparison of scores within groups.

    A row's score is its return from the first turn on. With ``per_turn`` turn k of a row is compared with the returns
    of its siblings from turn k on; one that ended earlier counts with the return of its last turn. So the baseline of a
    turn does not depend on what is written in it, each turn has as many siblings as the row, and without discount and
    rewards of turns every turn has the row's advantage.

    Args:
        inputs: Rows.
        config: Algorithm.
        compare: Function of one score per row, float64 [B], and groups that returns one advantage per row.
    """
    groups = Groups(inputs.group_ids)
    if not config.reads_turns:
        return _spread(compare(_row_scores(inputs), groups), inputs.mask)
    turns = Turns.of(inputs.rewards, inputs.mask, inputs.turns)
    columns = turns.returns(config.turn_discount).unbind(1)
    if not config.per_turn:
        return _spread(compare(columns[0] if columns else _row_scores(inputs), groups), inputs.mask)
    compared = [compare(column, groups) for column in columns]
    return _same(turns.spread(torch.stack(compared, 1) if compared else turns.rewards))


def _spread(row_advantages: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's advantage for all its tokens, and the same as returns, as without a critic."""
    return _same(row_advantages[:, None] * mask)


def _same(advantages: Tensor) -> tuple[Tensor, Tensor]:
    return advantages, advantages


def grpo(inputs: AdvantageInputs, config: AlgorithmConfig) -> tuple[Tensor, Tensor]:
    """Divide the score minus the group's mean by the group's standard deviation: A = (s − μ) / (σ + 1e-6).

    σ is the sample deviation (n − 1); a single row has μ = 0, σ = 1. Shao et al. 2024, "DeepSeekMath",
    arXiv:2402.03300 (outcome supervision).
    """

    def compare(scores: Tensor, groups: Groups) -> Tensor:
        deviation = groups.std(scores).masked_fill(groups.single, 1.0)[groups.index]
        return _center(scores, groups) / (deviation + 1e-6)

    return _compare(inputs, config, compare)


def dr_grpo(inputs: AdvantageInputs, config: AlgorithmConfig) -> tuple[Tensor, Tensor]:
    """Subtract the group's mean from the score: A = s − μ; a single row has μ = 0.

    GRPO without the division by the deviation, which favours groups of little spread. The paper pairs it with
    ``aggregation=seq_mean_token_sum_norm``. Liu et al. 2025, "Understanding R1-Zero-like training",
    arXiv:2503.20783.
    """
    return _compare(inputs, config, _center)


def rloo(inputs: AdvantageInputs, config: AlgorithmConfig) -> tuple[Tensor, Tensor]:
    """Subtract the mean of the *other* rows of the group from the score: A = (s − μ)·n / (n − 1).

    A single row keeps its score. Ahmadian et al. 2024, "Back to basics", arXiv:2402.14740.
    """

    def compare(scores: Tensor, groups: Groups) -> Tensor:
        sizes = groups.sizes.double()
        return _center(scores, groups) * (sizes / (sizes - 1).clamp(min=1))[groups.index]

    return _compare(inputs, config, compare)


def cpgd(inputs: AdvantageInputs, config: AlgorithmConfig) -> tuple[Tensor, Tensor]:
    """Weight scores as CPGD does: ``std`` as GRPO; ``naive`` s − μ; ``clip_filter`` (s − μ)·min(G/G′, max_weight).

    G is the number of groups, and G′ the number of groups with a signal: unequal scores, or a single row. (Some
    implementations divide the number of *rows* by G′, which makes the weight a constant.) Liu et al. 2025, "CPGD:
    toward stable rule-based reinforcement learning for language models", arXiv:2505.12504.
    """
    if config.cpgd.weight == "std":
        return grpo(inputs, config)
    groups, scores = Groups(inputs.group_ids), _row_scores(inputs)
    centered = _center(scores, groups)
    if config.cpgd.weight == "clip_filter":
        with_signal = groups.mixed(scores) | groups.single
        counts = scores.new_tensor([len(groups), with_signal.sum()])
        num_groups, num_with_signal = inputs.all_reduce(counts)
        centered = centered * (num_groups / num_with_signal.clamp(min=1)).clamp(max=config.cpgd.max_weight)
    return _spread(centered, inputs.mask)


def gae(inputs: AdvantageInputs, config: AlgorithmConfig) -> tuple[Tensor, Tensor]:
    """Estimate generalised advantages: A_t = δ_t + γλ·A_{t+1} with δ_t = r_t + γV_{t+1} − V_t; returns are A + V.

    Tokens outside the mask are not steps: V_{t+1} and A_{t+1} are those of the next token inside. Where that token
    belongs to a later turn of an agent, γ is ``gamma`` · ``turn_discount``. With ``per_turn`` the turns are the steps:
    V is the value before a turn's first token, γ is ``turn_discount``, and all tokens of a turn share its advantage and
    its return. ``whiten=batch`` whitens the advantages afterwards, and never the returns. Schulman et al. 2016,
    arXiv:1506.02438; turns as steps as in Zhou et al. 2024, "ArCHer", arXiv:2402.19446.
    """
    if inputs.values is None:
        raise ValueError("values: missing; advantage=gae needs them")
    values = inputs.values.double().masked_fill(~inputs.mask, 0.0)
    terminal = values.new_zeros(len(values))
    after = terminal if inputs.bootstrap_values is None else inputs.bootstrap_values.double()
    if config.per_turn:
        advantages, returns = _over_turns(inputs, values, after, config)
    else:
        advantages = _accumulate(inputs, values, after, _discounts(inputs, config), config.lam)
        returns = advantages + values
    if config.whiten == "batch":
        advantages = whiten(advantages, inputs.mask, over_rows(inputs.all_reduce))
    return advantages, returns


def marft(inputs: AdvantageInputs, config: AlgorithmConfig) -> tuple[Tensor, Tensor]:
    """Estimate generalised advantages along one chain over turns and agents, as :func:`gae` does along a row.

    A row holds one context of a conversation after the other, so an agent's turns stand together although others wrote
    between them. Here tokens follow each other in the order of the turns: V_{t+1} after an agent's last token is the
    value before the first token of the agent that writes next, and after the last agent of a round that of the first
    agent in the next one. Where each agent has a context of its own, ``gae`` bootstraps from its own next turn instead.
    Liao et al. 2025, "MARFT: Multi-agent reinforcement fine-tuning", arXiv:2504.16129.
    """
    if inputs.turns is None or not inputs.mask.numel():
        return gae(inputs, config)
    number = Turns.of(inputs.rewards, inputs.mask, inputs.turns).number
    order = number.argsort(dim=1, stable=True)
    chain = replace(
        inputs,
        rewards=inputs.rewards.gather(1, order),
        mask=inputs.mask.gather(1, order),
        turns=inputs.turns.gather(1, order),
        values=None if inputs.values is None else inputs.values.gather(1, order),
    )
    advantages, returns = (torch.zeros_like(each).scatter(1, order, each) for each in gae(chain, config))
    return advantages, returns


def _over_turns(
    inputs: AdvantageInputs, values: Tensor, after: Tensor, config: AlgorithmConfig
) -> tuple[Tensor, Tensor]:
    """Return GAE's advantages and returns with an agent's turns as steps, float64 [B, L]."""
    turns = Turns.of(inputs.rewards, inputs.mask, inputs.turns)
    steps, before = replace(inputs, rewards=turns.rewards, mask=turns.exist()), turns.first(values)
    advantages = _accumulate(steps, before, after, config.turn_discount, config.lam)
    return turns.spread(advantages), turns.spread(advantages + before)


def _discounts(inputs: AdvantageInputs, config: AlgorithmConfig) -> float | Tensor:
    """Return the discount after each token, float64 [B, L], or one number for all."""
    if config.turn_discount == 1:
        return config.gamma
    closed = Turns.of(inputs.rewards, inputs.mask, inputs.turns).closed()
    return torch.where(closed, config.gamma * config.turn_discount, config.gamma).double()


def reinforce_plus_plus(inputs: AdvantageInputs, config: AlgorithmConfig) -> tuple[Tensor, Tensor]:
    """Whiten the discounted returns over the whole batch; it needs neither critic nor groups.

    The paper puts the KL in the reward (``kl.placement=reward``). Hu 2025, "REINFORCE++", arXiv:2501.03262.
    """
    zeros = torch.zeros_like(inputs.rewards, dtype=torch.float64)
    returns = _accumulate(inputs, zeros, zeros.new_zeros(len(zeros)), config.gamma, lam=1.0)
    return whiten(returns, inputs.mask, over_rows(inputs.all_reduce)), returns


def reinforce_plus_plus_baseline(inputs: AdvantageInputs, config: AlgorithmConfig) -> tuple[Tensor, Tensor]:
    """Subtract the group's mean from the score and whiten over the tokens of the whole batch.

    A single row has no siblings and keeps its score before the whitening. Hu et al. 2025, "REINFORCE++",
    arXiv:2501.03262 (REINFORCE++ with a baseline).
    """
    groups, scores = Groups(inputs.group_ids), _row_scores(inputs)
    centered = _center(scores, groups)[:, None] * inputs.mask
    return _same(whiten(centered, inputs.mask, over_rows(inputs.all_reduce)))


def remax(inputs: AdvantageInputs, config: AlgorithmConfig) -> tuple[Tensor, Tensor]:
    """Subtract the reward of the group's greedy response from the return: A_t = Σ_{s≥t} r_s − b.

    With one reward per row that is s − b for all its tokens. The baseline depends on the prompt alone, so it leaves the
    gradient unbiased. Nothing is discounted. Li et al. 2023, "ReMax: a simple, effective, and efficient reinforcement
    learning method for aligning large language models", arXiv:2310.10505.
    """
    if inputs.baselines is None:
        raise ValueError("baselines: missing; advantage=remax needs them")
    zeros = torch.zeros_like(inputs.rewards, dtype=torch.float64)
    returns = _accumulate(inputs, zeros, zeros.new_zeros(len(zeros)), gamma=1.0, lam=1.0)
    return (returns - inputs.baselines.double()[:, None]) * inputs.mask, returns


def rae(inputs: AdvantageInputs, config: AlgorithmConfig) -> tuple[Tensor, Tensor]:
    """Subtract an agent's running baseline from its outcome: A = s − b, for all tokens of the agent.

    The baseline averages the outcomes that the same agent had in earlier episodes
    (:mod:`embodyflow.algorithms.credit.running_baselines`). It needs neither critic nor siblings. Liu et al. 2025,
    "SPIRAL: self-play on zero-sum games incentivizes reasoning via multi-agent multi-turn reinforcement learning",
    arXiv:2506.24119.
    """
    if inputs.token_baselines is None:
        raise ValueError("token_baselines: missing; advantage=rae needs them")
    scores = _row_scores(inputs)[:, None] * inputs.mask
    return (scores - inputs.token_baselines.double()) * inputs.mask, scores


def opo(inputs: AdvantageInputs, config: AlgorithmConfig) -> tuple[Tensor, Tensor]:
    """Subtract the group's mean score weighted by length: A = s − Σ l·s / Σ l, with l the row's number of tokens.

    This baseline has the least variance if the squared norm of a row's gradient grows with its length. A single row
    and a group without tokens have the baseline 0. The paper takes one step per batch, so that no ratio differs from 1.
    Hao et al. 2025, "On-policy RL with optimal reward baseline", arXiv:2505.23585.
    """
    groups, scores = Groups(inputs.group_ids), _row_scores(inputs)
    lengths = inputs.mask.sum(1).double()
    mean_length = groups.mean(lengths)
    baseline = groups.mean(lengths * scores) / mean_length.masked_fill(mean_length == 0, 1.0)
    return _spread(_subtract(baseline, scores, groups), inputs.mask)


def pass_at_k(inputs: AdvantageInputs, config: AlgorithmConfig) -> tuple[Tensor, Tensor]:
    """Reward the best of k rows: the mean advantage of a row over all sets of k rows of its group that hold it.

    A row is right if its score is positive. With n rows, m of them wrong, P = 1 − C(m, k)/C(n, k) and
    σ = sqrt(P·(1 − P)): a right row has A = (1 − P)/σ, a wrong one A = (1 − P − C(m−1, k−1)/C(n−1, k−1))/σ. If σ = 0,
    as in a group in which all sets hold a right row, A = 0. A group of fewer than ``pass_k`` rows has k = n. Chen et
    al. 2025, "Pass@k training for adaptively balancing exploration and exploitation of large reasoning models",
    arXiv:2508.10751 (analytical derivation).
    """
    groups, right = Groups(inputs.group_ids), _row_scores(inputs) > 0
    num_wrong = (groups.mean(~right) * groups.sizes).round().long().tolist()
    of_right, of_wrong = [], []
    for size, wrong in zip(groups.sizes.tolist(), num_wrong, strict=True):
        k = min(config.pass_k, size)
        failed = math.comb(wrong, k) / math.comb(size, k)
        deviation = math.sqrt(failed * (1 - failed))
        without = math.comb(wrong - 1, k - 1) / math.comb(size - 1, k - 1) if wrong else 0.0
        of_right.append(failed / deviation if deviation else 0.0)
        of_wrong.append((failed - without) / deviation if deviation else 0.0)
    columns = inputs.rewards.new_tensor([of_right, of_wrong], dtype=torch.float64)[:, groups.index]
    return _spread(torch.where(right, columns[0], columns[1]), inputs.mask)


def _accumulate(inputs: AdvantageInputs, values: Tensor, after: Tensor, gamma: float | Tensor, lam: float) -> Tensor:
    """Run GAE's recursion backwards; return float64 [B, L], zero outside the mask.

    Args:
        inputs: Rewards and mask.
        values: Value before each step, float64 [B, L].
        after: Value after the last step, float64 [B].
        gamma: Discount of all steps, or of each, float64 [B, L].
        lam: GAE's λ.
    """
    rewards = inputs.rewards.double()
    if not rewards.numel():  # a rank without rows may have no columns either
        return rewards
    next_value, running = after, torch.zeros_like(after)
    columns = []
    for t in reversed(range(rewards.shape[1])):
        inside = inputs.mask[:, t]
        discount = gamma[:, t] if isinstance(gamma, Tensor) else gamma
        delta = rewards[:, t] + discount * next_value - values[:, t]
        running = torch.where(inside, delta + discount * lam * running, running)
        next_value = torch.where(inside, values[:, t], next_value)
        columns.append(running)
    return torch.stack(columns[::-1], 1).masked_fill(~inputs.mask, 0.0)
