"""Running baselines of agents (RAE), against numbers worked by hand."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodyflow.algorithms.advantages import AdvantageInputs, compute_advantages
from embodyflow.algorithms.algorithm_config import AlgorithmConfig
from embodyflow.algorithms.credit.running_baselines import Outcomes, follow

RAE = AlgorithmConfig(advantage="rae", per_agent=True)
MASK = torch.tensor([[1, 1, 0, 1], [1, 0, 0, 0], [1, 1, 1, 1]]).bool()
AGENTS = torch.tensor([[1, 1, 0, 2], [2, 0, 0, 0], [2, 1, 1, 2]])
REWARDS = torch.tensor([[0, 4, 9, -4], [2, 9, 9, 9], [1, 0, 8, 1]]).double()  # 9 is not read


def test_a_baseline_is_the_average_of_earlier_outcomes():
    outcomes = Outcomes.of(REWARDS, MASK, AGENTS, 2)
    assert outcomes.scores.tolist() == [[4, -4], [0, 2], [8, 2]]
    assert outcomes.wrote.tolist() == [[True, True], [False, True], [True, True]]
    before, after = follow(torch.tensor([1.0, 0.0]).double(), outcomes, 0.5)
    # The first agent: 1, then (1 + 4)/2 = 2.5, which its absence leaves. The second: 0, −2, (−2 + 2)/2 = 0.
    assert before.tolist() == [[1, 0], [2.5, -2], [2.5, 0]]
    assert after.tolist() == [(2.5 + 8) / 2, 1]


def test_an_advantage_is_the_outcome_minus_the_baseline_before_it():
    before, _ = follow(torch.zeros(2).double(), Outcomes.of(REWARDS, MASK, AGENTS, 2), 0.95)
    # Agent 1: 0, 0.05·4 = 0.2, 0.2. Agent 2: 0, −0.2, −0.2·0.95 + 0.05·2 = −0.09.
    baselines = torch.nn.functional.pad(before, (1, 0)).gather(1, AGENTS)
    inputs = AdvantageInputs(REWARDS, MASK, torch.tensor([0, 0, 1]), token_baselines=baselines, agents=AGENTS)
    advantages, returns = compute_advantages(inputs, RAE)
    expected = [[4, 4, 0, -4], [2.2, 0, 0, 0], [2.09, 7.8, 7.8, 2.09]]
    torch.testing.assert_close(advantages, torch.tensor(expected).double())
    assert returns.tolist() == [[4, 4, 0, -4], [2, 0, 0, 0], [2, 8, 8, 2]]


@st.composite
def outcomes(draw):
    """Draw outcomes of up to three agents in up to eight episodes."""
    num_rows, num_agents = draw(st.integers(0, 8)), draw(st.integers(1, 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    scores = torch.randn(num_rows, num_agents, generator=generator).double()
    wrote = torch.rand(num_rows, num_agents, generator=generator) < 0.7
    return Outcomes(scores * wrote, wrote)


@settings(max_examples=40)
@given(outcomes(), st.floats(0, 0.99), st.integers(0, 8))
def test_iterations_may_be_cut_anywhere(played, decay, cut):
    start = torch.zeros(played.scores.shape[1]).double()
    before, after = follow(start, played, decay)
    first, between = follow(start, Outcomes(played.scores[:cut], played.wrote[:cut]), decay)
    second, end = follow(between, Outcomes(played.scores[cut:], played.wrote[cut:]), decay)
    assert torch.equal(torch.cat([first, second]), before) and torch.equal(end, after)


@settings(max_examples=40)
@given(outcomes(), st.integers(0, 7), st.integers(0, 2), st.floats(-9, 9))
def test_an_outcome_changes_the_later_baselines_of_its_agent_alone(played, row, agent, more):
    num_rows, num_agents = played.scores.shape
    if row >= num_rows or agent >= num_agents:
        return
    scores = played.scores.clone()
    scores[row, agent] += more
    start = torch.zeros(num_agents).double()
    before, _ = follow(start, played, 0.95)
    changed, _ = follow(start, Outcomes(scores, played.wrote), 0.95)
    expected = torch.zeros_like(before)
    later = torch.arange(num_rows) > row
    ages = played.wrote[:, agent].cumsum(0) - played.wrote[: row + 1, agent].sum() - played.wrote[:, agent].long()
    expected[later, agent] = 0.05 * more * 0.95 ** ages[later].double() * played.wrote[row, agent]
    torch.testing.assert_close(changed - before, expected, atol=1e-12, rtol=1e-9)


def test_what_is_missing_is_refused():
    inputs = AdvantageInputs(REWARDS, MASK, torch.tensor([0, 0, 1]), agents=AGENTS)
    with pytest.raises(ValueError, match="token_baselines: missing; advantage=rae needs them"):
        compute_advantages(inputs, RAE)
    with pytest.raises(ValueError, match=r"token_baselines: shape \[3\]; allowed: \[3, 4\]"):
        compute_advantages(dataclasses.replace(inputs, token_baselines=torch.zeros(3)), RAE)
    with pytest.raises(ValueError, match="a token inside the mask has no agent"):
        Outcomes.of(REWARDS, MASK, AGENTS * 0, 2)
    with pytest.raises(ValueError, match="advantage=rae: needs per_agent=true, since it keeps a baseline for each"):
        AlgorithmConfig(advantage="rae")
    with pytest.raises(ValueError, match=r"baseline_decay=0\.5: only used with advantage=rae, and advantage is grpo"):
        AlgorithmConfig(baseline_decay=0.5)
