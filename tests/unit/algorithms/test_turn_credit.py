"""Credit over an agent's turns, against numbers worked by hand."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodyflow.algorithms.advantages import AdvantageInputs, compute_advantages
from embodyflow.algorithms.aggregation import count_tokens, token_weights
from embodyflow.algorithms.algorithm_config import AlgorithmConfig

TURNS = torch.tensor([[1, 1, 0, 2], [1, 0, 0, 0], [0, 1, 2, 2]])
INPUTS = AdvantageInputs(
    rewards=torch.tensor([[0, 0, 9, 1.0], [0.2, 9, 9, 9], [9, 0.4, 0, 0]], dtype=torch.float64),  # 9 is not read
    mask=TURNS > 0,
    group_ids=torch.tensor([7, 7, 7]),
    values=torch.tensor([[0.1, 0.2, 9, 0.3], [0.5, 9, 9, 9], [9, 0.4, 0.6, 0.2]], dtype=torch.float64),
    turns=TURNS,
)


def advantages(inputs=INPUTS, **values):
    return compute_advantages(inputs, AlgorithmConfig(whiten=None, **values))


@pytest.mark.parametrize(
    ("name", "of_rows", "of_second_turns"),
    [  # with γ = 0.5 the returns of the turns are 0.5, 1.0 | 0.2 | 0.4, 0.0, and row 2 counts as 0.2 in both turns
        ("dr_grpo", (0.4 / 3, -0.5 / 3, 0.1 / 3), (0.6, -0.4)),
        ("rloo", (0.2, -0.25, 0.05), (0.9, -0.6)),
        ("grpo", (0.872872, -1.091089, 0.218218), (1.133893, -0.755929)),
    ],
)
def test_group_estimators_by_hand(name, of_rows, of_second_turns):
    a, b, c = of_rows
    whole, _ = advantages(advantage=name, turn_discount=0.5)
    torch.testing.assert_close(
        whole, torch.tensor([[a, a, 0, a], [b, 0, 0, 0], [0, c, c, c]]).double(), atol=1e-5, rtol=0
    )
    d, e = of_second_turns
    single, _ = advantages(advantage=name, turn_discount=0.5, per_turn=True)
    torch.testing.assert_close(
        single, torch.tensor([[a, a, 0, d], [b, 0, 0, 0], [0, c, e, e]]).double(), atol=1e-5, rtol=0
    )


def test_gae_discounts_between_turns():
    found, returns = advantages(advantage="gae", gamma=0.9, lam=0.8, turn_discount=0.5)
    # Row 1: δ = 1 − 0.3; then 0.45·0.3 − 0.2 and 0.36·A; then 0.9·0.2 − 0.1 and 0.72·A.
    torch.testing.assert_close(found[0], torch.tensor([0.21464, 0.187, 0, 0.7]).double())
    torch.testing.assert_close(returns[0], torch.tensor([0.31464, 0.387, 0, 1.0]).double())
    torch.testing.assert_close(found[1], torch.tensor([-0.3, 0, 0, 0]).double())


def test_gae_with_turns_as_steps():
    found, returns = advantages(advantage="gae", lam=0.8, turn_discount=0.5, per_turn=True)
    # Row 1: V = 0.1, 0.3 and r = 0, 1: A₂ = 0.7 and A₁ = 0.5·0.3 − 0.1 + 0.4·0.7.
    torch.testing.assert_close(found[0], torch.tensor([0.33, 0.33, 0, 0.7]).double())
    torch.testing.assert_close(returns[0], torch.tensor([0.43, 0.43, 0, 1.0]).double())
    # Row 3: V = 0.4, 0.6 and r = 0.4, 0: A₂ = −0.6 and A₁ = 0.4 + 0.5·0.6 − 0.4 − 0.4·0.6.
    torch.testing.assert_close(found[2], torch.tensor([0, 0.06, -0.6, -0.6]).double())


def test_whitening_is_over_tokens_of_the_model():
    found, returns = compute_advantages(INPUTS, AlgorithmConfig(advantage="gae", per_turn=True))
    inside = found[INPUTS.mask]
    assert inside.mean().abs() < 1e-9 and (inside.var() - 1).abs() < 1e-4
    assert torch.equal(returns, advantages(advantage="gae", per_turn=True)[1])


rows = st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=1, max_size=6)


def inputs_of(sizes: list[list[int]], seed: int, *, outcome_only: bool) -> AdvantageInputs:
    """Make rows of turns with these numbers of tokens, at least one, and tokens of others between them."""
    numbers = [[n for k, size in enumerate(row, 1) for n in [0] * (k % 2) + [k] * max(size, k == 1)] for row in sizes]
    turns = torch.tensor([row + [0] * (30 - len(row)) for row in numbers])
    for row in turns:  # turns without tokens leave no gap in the numbers
        row[row > 0] = torch.unique(row[row > 0], return_inverse=True)[1] + 1
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randn(turns.shape, generator=generator, dtype=torch.float64)
    if outcome_only:
        rewards *= (turns.flip(1).cumsum(1).flip(1) == turns) & (turns > 0)
    groups = torch.randint(0, 2, (len(turns),), generator=generator)
    return AdvantageInputs(rewards, turns > 0, groups, values=torch.randn_like(rewards), turns=turns)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo"])
@settings(max_examples=20)
@given(rows, st.integers(0, 99))
def test_an_outcome_alone_gives_every_turn_the_rows_advantage(name, sizes, seed):
    inputs = inputs_of(sizes, seed, outcome_only=True)
    whole, single = advantages(inputs, advantage=name)[0], advantages(inputs, advantage=name, per_turn=True)[0]
    torch.testing.assert_close(whole, single)
    torch.testing.assert_close(whole, advantages(dataclasses.replace(inputs, turns=None), advantage=name)[0])


@settings(max_examples=30)
@given(rows, st.integers(0, 99), st.floats(0, 1))
def test_turns_against_a_slow_loop(sizes, seed, discount):
    inputs = inputs_of(sizes, seed, outcome_only=False)
    found, _ = advantages(inputs, advantage="dr_grpo", per_turn=True, turn_discount=discount)
    returns = []
    for row in range(len(inputs.mask)):
        sums = [
            inputs.rewards[row][inputs.turns[row] == k].sum().item() for k in range(1, int(inputs.turns[row].max()) + 1)
        ]
        returns.append([sum(r * discount**n for n, r in enumerate(sums[k:])) for k in range(len(sums))])
    for row, column in inputs.mask.nonzero().tolist():
        turn = int(inputs.turns[row, column]) - 1
        siblings = [each for each in range(len(returns)) if inputs.group_ids[each] == inputs.group_ids[row]]
        theirs = [returns[each][min(turn, len(returns[each]) - 1)] for each in siblings]
        baseline = sum(theirs) / len(theirs) if len(theirs) > 1 else 0.0
        assert found[row, column].item() == pytest.approx(returns[row][turn] - baseline, abs=1e-9)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "gae"])
@pytest.mark.parametrize("shape", [(0, 0), (0, 4), (2, 0), (2, 3)])
def test_rows_without_turns_have_no_advantages(name, shape):
    zeros = torch.zeros(shape)
    inputs = AdvantageInputs(zeros, zeros.bool(), torch.zeros(shape[0], dtype=torch.int64), zeros, turns=zeros.long())
    for values in ({"per_turn": True}, {"turn_discount": 0.5}):
        assert not any(each.any() for each in advantages(inputs, advantage=name, **values))


def test_aggregations_count_the_models_tokens_alone():
    counts = count_tokens(INPUTS.mask, row_capacity=10)
    expected = {"token_mean": (1 / 7,) * 3, "seq_mean_token_mean": (1 / 9, 1 / 3, 1 / 9)}
    expected |= {"seq_mean_token_sum": (1 / 3,) * 3, "seq_mean_token_sum_norm": (1 / 30,) * 3}
    for name, weights in expected.items():
        wanted = torch.tensor(weights, dtype=torch.float64)[:, None] * INPUTS.mask
        torch.testing.assert_close(token_weights(INPUTS.mask, name, counts), wanted)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"advantage": "opo", "per_turn": True}, "per_turn=true: advantage=opo knows no turns; allowed: grpo, dr_grpo"),
        ({"advantage": "remax", "turn_discount": 0.5}, "turn_discount=0.5: advantage=remax knows no turns"),
        (
            {"loss": "gspo", "aggregation": "seq_mean_token_mean", "per_turn": True},
            "per_turn=true: loss=gspo needs one advantage per row",
        ),
        ({"advantage": "gae", "gamma": 0.9, "per_turn": True}, "gamma=0.9: must be 1 with per_turn=true"),
    ],
)
def test_settings_without_a_meaning_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        AlgorithmConfig(**values)
