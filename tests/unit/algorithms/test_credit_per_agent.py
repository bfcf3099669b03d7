"""Credit to each agent of an episode, against numbers worked by hand."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodyflow.algorithms.advantages import AdvantageInputs, compute_advantages
from embodyflow.algorithms.algorithm_config import AlgorithmConfig
from embodyflow.algorithms.credit.agents import AgentRows

AGENTS = torch.tensor([[1, 1, 0, 2, 1], [1, 0, 2, 2, 0], [2, 0, 0, 0, 0]])
TURNS = torch.tensor([[1, 1, 0, 2, 3], [1, 0, 2, 2, 0], [1, 0, 0, 0, 0]])
INPUTS = AdvantageInputs(
    rewards=torch.tensor([[0, 0, 9, -2, 2], [-1, 9, 0, 1, 9], [4, 9, 9, 9, 9]], dtype=torch.float64),  # 9 is not read
    mask=AGENTS > 0,
    group_ids=torch.tensor([7, 7, 7]),
    turns=TURNS,
    agents=AGENTS,
)


def advantages(inputs=INPUTS, **values):
    return compute_advantages(inputs, AlgorithmConfig(whiten=None, **values))[0]


@pytest.mark.parametrize(
    ("name", "of_first", "of_second"),
    [  # the first agent has 2 and −1 in rows 1 and 2, the second −2, 1 and 4; the mean is 0.5, and 1
        ("dr_grpo", (1.5, -1.5), (-3.0, 0.0, 3.0)),
        ("rloo", (3.0, -3.0), (-4.5, 0.0, 4.5)),
        ("grpo", (0.707106, -0.707106), (-1.0, 0.0, 1.0)),
    ],
)
def test_group_estimators_by_hand(name, of_first, of_second):
    (a, b), (c, d, e) = of_first, of_second
    found = advantages(advantage=name, per_agent=True)
    expected = torch.tensor([[a, a, 0, c, a], [b, 0, d, d, 0], [e, 0, 0, 0, 0]]).double()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_the_sum_of_a_zero_sum_game_says_nothing():
    rewards = torch.tensor([[0, 0, 0, -2, 2], [-1, 0, 0, 1, 0], [0, 0, 0, 0, 0]], dtype=torch.float64)
    zero_sum = dataclasses.replace(INPUTS, rewards=rewards)
    assert not advantages(zero_sum, advantage="dr_grpo").any()
    assert advantages(zero_sum, advantage="dr_grpo", per_agent=True).any()


def test_turns_are_counted_for_each_agent():
    agents = AgentRows.of(INPUTS.mask, AGENTS)
    assert agents.row.tolist() == [0, 0, 1, 1, 2] and agents.agent.tolist() == [1, 2, 1, 2, 2]
    expected = [[1, 1, 0, 0, 2], [0, 0, 0, 1, 0], [1, 0, 0, 0, 0], [0, 0, 1, 1, 0], [1, 0, 0, 0, 0]]
    assert agents.own_turns(TURNS).tolist() == expected
    found = advantages(advantage="dr_grpo", per_agent=True, per_turn=True, turn_discount=0.5)
    # The first agent's returns from its turns are 1 and 2 in row 1; row 2 counts with −1 in both.
    torch.testing.assert_close(found[0], torch.tensor([1.0, 1.0, 0, -3.0, 1.5]).double())


def test_gae_runs_over_each_agents_own_tokens():
    values = torch.tensor([[0.5, 1.0, 9, -1.0, 1.5], [0, 9, 0, 0, 9], [0, 9, 9, 9, 9]]).double()
    found = advantages(dataclasses.replace(INPUTS, values=values), advantage="gae", lam=0.5, per_agent=True)
    # The first agent: δ = 1.5 − 1 … from its last token 2 − 1.5 back; the second agent's token is no step of it.
    torch.testing.assert_close(found[0], torch.tensor([0.875, 0.75, 0, -1.0, 0.5]).double())


@st.composite
def games(draw):
    """Draw rows in which up to three agents write, with outcomes at their last tokens."""
    num_rows, length = draw(st.integers(1, 5)), draw(st.integers(1, 8))
    cell = st.lists(st.integers(0, 3), min_size=length, max_size=length)
    agents = torch.tensor(draw(st.lists(cell, min_size=num_rows, max_size=num_rows)))
    rewards = torch.randn(agents.shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99)))).double()
    groups = torch.tensor(draw(st.lists(st.integers(0, 1), min_size=num_rows, max_size=num_rows)))
    return AdvantageInputs(rewards, agents > 0, groups, agents=agents)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo"])
@settings(max_examples=30)
@given(games())
def test_an_agent_has_the_advantage_of_a_game_without_the_others(name, inputs):
    found = advantages(inputs, advantage=name, per_agent=True)
    for agent in (1, 2, 3):
        mine = inputs.agents == agent
        rows = mine.any(1)
        alone = AdvantageInputs(inputs.rewards[rows], mine[rows], inputs.group_ids[rows])
        torch.testing.assert_close(found[rows] * mine[rows], advantages(alone, advantage=name))
    assert not found[~inputs.mask].any()


@settings(max_examples=20)
@given(games())
def test_one_agent_is_an_episode_without_agents(inputs):
    alone = dataclasses.replace(inputs, agents=inputs.mask.int())
    rows = inputs.mask.any(1)
    whole = advantages(dataclasses.replace(inputs, rewards=inputs.rewards * rows[:, None]), advantage="dr_grpo")
    if rows.all():
        torch.testing.assert_close(advantages(alone, advantage="dr_grpo", per_agent=True), whole)


@settings(max_examples=20)
@given(games(), st.floats(-5, 5))
def test_what_the_others_earn_does_not_matter(inputs, more):
    other = inputs.rewards + more * (inputs.agents == 2)
    before, after = (
        advantages(dataclasses.replace(inputs, rewards=rewards), advantage="grpo", per_agent=True)
        for rewards in (inputs.rewards, other)
    )
    mine = inputs.agents != 2
    torch.testing.assert_close(before[mine], after[mine])


@pytest.mark.parametrize("shape", [(0, 0), (0, 4), (2, 0), (2, 3)])
def test_rows_without_tokens_have_no_advantages(shape):
    zeros = torch.zeros(shape)
    inputs = AdvantageInputs(
        zeros, zeros.bool(), torch.zeros(shape[0], dtype=torch.int64), turns=zeros.long(), agents=zeros.long()
    )
    assert not advantages(inputs, advantage="grpo", per_agent=True, per_turn=True).any()


def test_a_token_without_an_agent_is_refused():
    with pytest.raises(ValueError, match="agents: missing; per_agent=true needs them"):
        advantages(dataclasses.replace(INPUTS, agents=None), per_agent=True)
    with pytest.raises(ValueError, match="agents: a token inside the mask has no agent"):
        advantages(dataclasses.replace(INPUTS, agents=AGENTS * 0), per_agent=True)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"loss": "gspo", "aggregation": "seq_mean_token_mean", "per_agent": True},
            "per_agent=true: loss=gspo needs one advantage per row; allowed with it is false",
        ),
        ({"advantage": "marft", "per_agent": True}, "per_agent=true: advantage=marft is one chain over all agents"),
        ({"advantage": "remax", "per_agent": True}, "per_agent=true: advantage=remax compares with one greedy reward"),
    ],
)
def test_settings_without_a_meaning_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        AlgorithmConfig(**values)


def test_marft_chains_turns_over_agents():
    """Two contexts in a row: the first agent's turns 1 and 3, then the second agent's turns 2 and 4."""
    turns = torch.tensor([[1, 1, 0, 3, 0, 2, 0, 4]])
    inputs = AdvantageInputs(
        rewards=torch.tensor([[0, 1, 9, 0, 9, 0, 9, 2]], dtype=torch.float64),
        mask=turns > 0,
        group_ids=torch.tensor([0]),
        values=torch.tensor([[0.5, 1.0, 9, 2.0, 9, 1.5, 9, 1.0]]).double(),
        turns=turns,
        agents=torch.tensor([[1, 1, 0, 1, 0, 2, 0, 2]]),
    )
    # Values in the order of the turns are 0.5, 1, 1.5, 2, 1, then 0; λ = 0.5, γ = 1.
    # δ = 0.5, 1 + 1.5 − 1 = 1.5, 2 − 1.5 = 0.5, 1 − 2 = −1, 2 − 1 = 1
    # A from the end: 1, −1 + 0.5 = −0.5, 0.5 − 0.25 = 0.25, 1.5 + 0.125 = 1.625, 0.5 + 0.8125 = 1.3125
    found = advantages(inputs, advantage="marft", lam=0.5)
    torch.testing.assert_close(found, torch.tensor([[1.3125, 1.625, 0, -0.5, 0, 0.25, 0, 1.0]]).double())
    _, returns = compute_advantages(inputs, AlgorithmConfig(whiten=None, advantage="marft", lam=0.5))
    torch.testing.assert_close(returns[0, 5], torch.tensor(1.75).double())
    in_order = dataclasses.replace(INPUTS, values=torch.ones(3, 5).double())
    assert advantages(in_order, advantage="marft", lam=0.5).equal(advantages(in_order, advantage="gae", lam=0.5))


def test_the_discount_between_turns_follows_the_chain():
    turns = torch.tensor([[1, 3, 2]])
    inputs = AdvantageInputs(
        rewards=torch.tensor([[0, 8, 0]], dtype=torch.float64),
        mask=turns > 0,
        group_ids=torch.tensor([0]),
        values=torch.zeros(1, 3).double(),
        turns=turns,
    )
    found = advantages(inputs, advantage="marft", turn_discount=0.5)
    assert found.tolist() == [[2.0, 8.0, 4.0]]
