import dataclasses
import itertools
import math
import statistics

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from embodyflow.algorithms.advantages import AdvantageInputs, compute_advantages
from embodyflow.algorithms.algorithm_config import AlgorithmConfig

GROUP_ESTIMATORS = {
    "grpo": AlgorithmConfig(advantage="grpo"),
    "dr_grpo": AlgorithmConfig(advantage="dr_grpo"),
    "rloo": AlgorithmConfig(advantage="rloo"),
    "cpgd-std": AlgorithmConfig(advantage="cpgd", loss="cpgd", cpgd={"weight": "std"}),
    "cpgd-naive": AlgorithmConfig(advantage="cpgd", loss="cpgd", cpgd={"weight": "naive"}),
    "cpgd-clip_filter": AlgorithmConfig(advantage="cpgd", loss="cpgd", cpgd={"weight": "clip_filter"}),
}
ALL_ESTIMATORS = GROUP_ESTIMATORS | {
    "opo": AlgorithmConfig(advantage="opo"),
    "remax": AlgorithmConfig(advantage="remax"),
    "pass_at_k": AlgorithmConfig(advantage="pass_at_k", pass_k=2),
    "gae": AlgorithmConfig(advantage="gae", gamma=0.9, lam=0.8),
    "reinforce_plus_plus": AlgorithmConfig(advantage="reinforce_plus_plus", gamma=0.9),
    "reinforce_plus_plus_baseline": AlgorithmConfig(advantage="reinforce_plus_plus_baseline"),
}


def by_score(scores, group_ids, name):
    """One token per row: its advantage is the row's."""
    scores = torch.tensor(scores, dtype=torch.float64)
    inputs = AdvantageInputs(scores[:, None], torch.ones(len(scores), 1, dtype=torch.bool), torch.tensor(group_ids))
    return compute_advantages(inputs, ALL_ESTIMATORS[name])[0][:, 0]


def random_inputs(seed, num_rows=9, length=5, **kwargs):
    rng = torch.Generator().manual_seed(seed)
    return AdvantageInputs(
        rewards=torch.randn(num_rows, length, generator=rng, dtype=torch.float64),
        mask=torch.rand(num_rows, length, generator=rng) < 0.7,
        group_ids=torch.randint(0, 3, (num_rows,), generator=rng),
        values=torch.randn(num_rows, length, generator=rng, dtype=torch.float64),
        bootstrap_values=torch.randn(num_rows, generator=rng, dtype=torch.float64),
        baselines=torch.randn(num_rows, generator=rng, dtype=torch.float64),
        **kwargs,
    )


def take(inputs, rows, **kwargs):
    return AdvantageInputs(
        inputs.rewards[rows],
        inputs.mask[rows],
        inputs.group_ids[rows],
        inputs.values[rows],
        inputs.bootstrap_values[rows],
        inputs.baselines[rows],
        **kwargs,
    )


# Group 7 scores 1, 0, 0, 1 (mean 1/2, sample deviation sqrt(1/3)), group 3 scores 2, 2, group 5 one row of 4.
SCORES, GROUP_IDS = [1.0, 2.0, 0.0, 4.0, 0.0, 2.0, 1.0], [7, 3, 7, 5, 7, 3, 7]
SIGNS = [1, 0, -1, None, -1, 0, 1]


@pytest.mark.parametrize(
    ("name", "size", "single"),
    [
        ("grpo", 0.5 / (math.sqrt(1 / 3) + 1e-6), 4.0 / (1 + 1e-6)),
        ("dr_grpo", 0.5, 4.0),
        ("rloo", 2 / 3, 4.0),  # 1 − mean(0, 0, 1)
        ("cpgd-std", 0.5 / (math.sqrt(1 / 3) + 1e-6), 4.0 / (1 + 1e-6)),
        ("cpgd-naive", 0.5, 4.0),
        ("cpgd-clip_filter", 0.75, 6.0),  # three groups, two with a signal
    ],
)
def test_group_estimators_on_numbers_worked_by_hand(name, size, single):
    expected = [single if sign is None else sign * size for sign in SIGNS]
    assert by_score(SCORES, GROUP_IDS, name).tolist() == pytest.approx(expected, abs=1e-12)


def test_clip_filter_weight_is_bounded():
    scores, group_ids = [0.0, 1.0] + [0.0, 0.0] * 9, [i // 2 for i in range(20)]
    assert by_score(scores, group_ids, "cpgd-clip_filter")[:2].tolist() == [-1.5, 1.5]  # 10 / 1, at most 3


def test_clip_filter_counts_groups_of_all_ranks(run_ranks):
    config = GROUP_ESTIMATORS["cpgd-clip_filter"]
    inputs = random_inputs(0, num_rows=8)
    ids = torch.arange(8) // 2
    rewards = inputs.rewards.index_fill(0, torch.tensor([2, 3]), 0.0)
    inputs = dataclasses.replace(inputs, rewards=rewards, mask=torch.ones_like(inputs.mask), group_ids=ids)
    whole, _ = compute_advantages(inputs, config)
    parts = run_ranks(
        2,
        lambda rank, all_reduce: compute_advantages(
            take(inputs, slice(4 * rank, 4 * rank + 4), all_reduce=all_reduce), config
        )[0],
    )
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-12, atol=1e-12)


def test_gae_by_hand():
    config = AlgorithmConfig(advantage="gae", gamma=0.5, lam=0.5, whiten=None)
    inputs = AdvantageInputs(
        rewards=torch.tensor([[1.0, 2.0]]),
        mask=torch.ones(1, 2, dtype=torch.bool),
        group_ids=torch.tensor([0]),
        values=torch.tensor([[4.0, 8.0]]),
    )
    # δ_1 = 2 − 8 = −6;  δ_0 = 1 + 0.5·8 − 4 = 1;  A_0 = 1 + 0.25·(−6) = −0.5
    advantages, returns = compute_advantages(inputs, config)
    assert advantages.tolist() == [[-0.5, -6.0]]
    assert returns.tolist() == [[3.5, 2.0]]


def test_gae_bootstraps_a_truncated_row_and_not_a_terminated_one():
    config = AlgorithmConfig(advantage="gae", gamma=0.5, lam=1.0, whiten=None)
    inputs = AdvantageInputs(
        rewards=torch.tensor([[1.0, 9.0]]).repeat(2, 1),
        mask=torch.tensor([[True, False]]).repeat(2, 1),
        group_ids=torch.tensor([0, 1]),
        values=torch.tensor([[2.0, 7.0]]).repeat(2, 1),
        bootstrap_values=torch.tensor([0.0, 10.0]),
    )
    advantages, returns = compute_advantages(inputs, config)
    assert advantages.tolist() == [
        [-1.0, 0.0],
        [4.0, 0.0],
    ]  # 1 + 0.5·bootstrap − 2; the token outside is no step
    assert returns.tolist() == [[1.0, 0.0], [6.0, 0.0]]


def slow_gae(rewards, values, mask, bootstrap, gamma, lam):
    """GAE by its definition, A_t = Σ_k (γλ)^k δ_{t+k}, over the tokens inside the mask."""
    steps = [t for t, inside in enumerate(mask) if inside]
    v = [values[t] for t in steps] + [bootstrap]
    deltas = [rewards[t] + gamma * v[i + 1] - v[i] for i, t in enumerate(steps)]
    advantages = [0.0] * len(rewards)
    for i, t in enumerate(steps):
        advantages[t] = sum((gamma * lam) ** k * delta for k, delta in enumerate(deltas[i:]))
    return advantages


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), gamma=st.floats(0, 1), lam=st.floats(0, 1))
def test_gae_against_its_definition(seed, gamma, lam):
    inputs = random_inputs(seed)
    config = AlgorithmConfig(advantage="gae", gamma=gamma, lam=lam, whiten=None)
    advantages, returns = compute_advantages(inputs, config)
    expected = torch.tensor(
        [
            slow_gae(*row, gamma, lam)
            for row in zip(
                inputs.rewards.tolist(),
                inputs.values.tolist(),
                inputs.mask.tolist(),
                inputs.bootstrap_values.tolist(),
                strict=True,
            )
        ],
        dtype=torch.float64,
    )
    torch.testing.assert_close(advantages, expected)
    torch.testing.assert_close(returns, (expected + inputs.values) * inputs.mask)


def test_reinforce_plus_plus_by_hand():
    config = AlgorithmConfig(advantage="reinforce_plus_plus", gamma=0.5)
    inputs = AdvantageInputs(
        rewards=torch.tensor([[0.0, 0.0, 4.0], [2.0, 0.0, 0.0]], dtype=torch.float64),
        mask=torch.tensor([[True, False, True], [True, False, False]]),
        group_ids=torch.tensor([0, 0]),
    )
    advantages, returns = compute_advantages(inputs, config)
    assert returns.tolist() == [[2.0, 0.0, 4.0], [2.0, 0.0, 0.0]]
    # mean 8/3, sample variance ((2/3)² + (4/3)² + (2/3)²)/2 = 4/3
    scale = math.sqrt(4 / 3 + 1e-8)
    expected = [[-2 / 3 / scale, 0.0, 4 / 3 / scale], [-2 / 3 / scale, 0.0, 0.0]]
    assert advantages.tolist() == [pytest.approx(row, abs=1e-12) for row in expected]


@pytest.mark.parametrize("name", ["gae", "reinforce_plus_plus"])
def test_whitening_is_over_all_ranks(name, run_ranks):
    inputs, config = random_inputs(1, num_rows=10), ALL_ESTIMATORS[name]
    whole, _ = compute_advantages(inputs, config)
    inside = whole[inputs.mask]
    assert inside.mean().item() == pytest.approx(0, abs=1e-12)
    assert inside.var().item() == pytest.approx(1, abs=1e-6)
    parts = run_ranks(
        2,
        lambda rank, all_reduce: compute_advantages(
            take(inputs, slice(0, 3) if rank == 0 else slice(3, 10), all_reduce=all_reduce), config
        )[0],
    )
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-12, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31))
@pytest.mark.parametrize("name", ALL_ESTIMATORS)
def test_permuting_rows_permutes_advantages(name, seed):
    inputs = random_inputs(seed)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(seed))
    advantages, returns = compute_advantages(inputs, ALL_ESTIMATORS[name])
    shuffled = compute_advantages(take(inputs, order), ALL_ESTIMATORS[name])
    torch.testing.assert_close(shuffled[0], advantages[order])
    torch.testing.assert_close(shuffled[1], returns[order])


@settings(max_examples=25, deadline=None)
@given(scores=st.lists(st.floats(-5, 5), min_size=2, max_size=6), offset=st.integers(-(2**40), 2**40))
@pytest.mark.parametrize("name", GROUP_ESTIMATORS)
def test_a_group_does_not_see_a_copy_of_itself(name, scores, offset):
    """The id of the copy does not matter either."""
    assume(offset != 0)
    once = by_score(scores, [0] * len(scores), name)
    twice = by_score(scores * 2, [0] * len(scores) + [offset] * len(scores), name)
    torch.testing.assert_close(twice, once.repeat(2))


@settings(max_examples=25, deadline=None)
@given(
    scores=st.lists(st.integers(-5, 5), min_size=3, max_size=6),
    factor=st.floats(0.1, 10),
    shift=st.floats(-9, 9),
)
@pytest.mark.parametrize("name", GROUP_ESTIMATORS)
def test_scaling_and_shifting_rewards(name, scores, factor, shift):
    ids = [0] * len(scores)
    base = by_score([float(s) for s in scores], ids, name)
    assert base.sum().item() == pytest.approx(0, abs=1e-9)
    moved = by_score([factor * s + shift for s in scores], ids, name)
    divides = name in ("grpo", "cpgd-std")
    torch.testing.assert_close(moved, base if divides else factor * base, rtol=1e-4, atol=1e-7)


@given(score=st.floats(-3e38, 3e38) | st.floats(-1, 1), num_rows=st.integers(2, 9))
@example(score=1e20 / 3, num_rows=3)
@settings(max_examples=25, deadline=None)
@pytest.mark.parametrize("name", [*GROUP_ESTIMATORS, "opo", "reinforce_plus_plus_baseline"])
def test_equal_scores_give_no_advantage(name, score, num_rows):
    assert by_score([score] * num_rows, [4] * num_rows, name).tolist() == [0.0] * num_rows


@given(seed=st.integers(0, 2**31))
@settings(max_examples=15, deadline=None)
@pytest.mark.parametrize("name", GROUP_ESTIMATORS)
def test_group_estimators_against_a_slow_loop(name, seed):
    inputs = random_inputs(seed)
    rows = range(len(inputs.rewards))
    scores = [sum(r for r, m in zip(inputs.rewards[i].tolist(), inputs.mask[i], strict=True) if m) for i in rows]
    groups = {}
    for i in rows:
        groups.setdefault(int(inputs.group_ids[i]), []).append(scores[i])
    signal = sum(len(group) == 1 or len(set(group)) > 1 for group in groups.values())
    advantages, returns = compute_advantages(inputs, GROUP_ESTIMATORS[name])
    for i in rows:
        group = groups[int(inputs.group_ids[i])]
        alone, n = len(group) == 1, len(group)
        centered = scores[i] - (0 if alone else statistics.fmean(group))
        expected = {
            "grpo": lambda c, g, a, n: c / ((1 if a else statistics.stdev(g)) + 1e-6),
            "cpgd-std": lambda c, g, a, n: c / ((1 if a else statistics.stdev(g)) + 1e-6),
            "dr_grpo": lambda c, g, a, n: c,
            "cpgd-naive": lambda c, g, a, n: c,
            "rloo": lambda c, g, a, n: c if a else c * n / (n - 1),
            "cpgd-clip_filter": lambda c, g, a, n: c * min(len(groups) / signal, 3),
        }[name](centered, group, alone, n)
        assert advantages[i].tolist() == pytest.approx([expected * bool(m) for m in inputs.mask[i]], abs=1e-9)
    assert torch.equal(returns, advantages)


@pytest.mark.parametrize("name", ALL_ESTIMATORS)
def test_what_lies_outside_the_mask_is_not_read(name):
    inputs = random_inputs(2)
    clean = compute_advantages(inputs, ALL_ESTIMATORS[name])
    dirty = dataclasses.replace(
        inputs,
        rewards=inputs.rewards.masked_fill(~inputs.mask, math.nan),
        values=inputs.values.masked_fill(~inputs.mask, math.inf),
    )
    for left, right in zip(compute_advantages(dirty, ALL_ESTIMATORS[name]), clean, strict=True):
        assert torch.equal(left, right)
        assert (left[~inputs.mask] == 0).all()


@pytest.mark.parametrize("name", ALL_ESTIMATORS)
@pytest.mark.parametrize("num_inside", [0, 1])
def test_masks_of_zeros_give_zeros(name, num_inside):
    inputs = random_inputs(3)
    mask = torch.zeros_like(inputs.mask)
    mask[0, :num_inside] = True
    inputs = dataclasses.replace(inputs, mask=mask)
    advantages, returns = compute_advantages(inputs, ALL_ESTIMATORS[name])
    assert torch.isfinite(advantages).all()
    assert torch.isfinite(returns).all()
    assert (advantages[1:] == 0).all()


@pytest.mark.parametrize("length", [0, 5])
@pytest.mark.parametrize("name", ALL_ESTIMATORS)
def test_a_rank_without_rows_has_no_advantages(name, length):
    """Rows of different lengths travel without padding, so a rank without rows has no columns either."""
    advantages, returns = compute_advantages(random_inputs(0, num_rows=0, length=length), ALL_ESTIMATORS[name])
    assert advantages.shape == returns.shape == (0, length)


def test_results_have_the_rewards_dtype():
    inputs = random_inputs(4)
    inputs = AdvantageInputs(inputs.rewards.float(), inputs.mask, inputs.group_ids)
    assert compute_advantages(inputs, GROUP_ESTIMATORS["grpo"])[0].dtype == torch.float32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": None}, "values: missing"),
        ({"values": torch.zeros(9, 1)}, r"values: shape \[9, 1\]; allowed: \[9, 5\]"),
        ({"group_ids": torch.zeros(5, dtype=torch.long)}, r"group_ids: shape \[5\]; allowed: \[9\]"),
        ({"rewards": torch.full((9, 5), math.nan)}, "rewards: not finite"),
        ({"mask": torch.ones(9, 5)}, "mask: dtype torch.float32"),
    ],
)
def test_bad_inputs_are_named(change, message):
    inputs = random_inputs(5)
    fields = {name: getattr(inputs, name) for name in ("rewards", "mask", "group_ids", "values")} | change
    with pytest.raises(ValueError, match=message):
        compute_advantages(AdvantageInputs(**fields), ALL_ESTIMATORS["gae"])


def bare(inputs, config):
    return inputs.rewards


def of_rows(inputs, config):
    return inputs.rewards.sum(1), inputs.rewards


def divided_by_nothing(inputs, config):
    return inputs.rewards / 0 * 0, inputs.rewards


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("bare", r"returns Tensor; allowed: \(advantages, returns\)"),
        ("of_rows", r"returns advantages \[3\]; allowed: \[3, 3\], one per token"),
        ("divided_by_nothing", "advantages are not finite inside the mask"),
    ],
)
def test_a_users_estimator_must_return_a_finite_advantage_per_token(function, message):
    inputs = AdvantageInputs(torch.ones(3, 3), torch.ones(3, 3, dtype=torch.bool), torch.arange(3))
    with pytest.raises(ValueError, match=f"^algorithm.advantage={__name__}:{function}: {message}"):
        compute_advantages(inputs, AlgorithmConfig(advantage=f"{__name__}:{function}"))


def test_opo_weights_the_baseline_by_length():
    """Scores 1 and 4 over 1 and 3 tokens: the baseline is (1·1 + 3·4) / 4 = 3.25; a single row has none."""
    rewards = torch.tensor([[1.0, 9.0, 9.0], [1.0, 1.0, 2.0], [5.0, 0.0, 0.0], [9.0, 9.0, 9.0]])
    mask = torch.tensor([[True, False, False], [True] * 3, [True, True, False], [False] * 3])
    inputs = AdvantageInputs(rewards, mask, torch.tensor([4, 4, 2, 3]))
    advantages, returns = compute_advantages(inputs, ALL_ESTIMATORS["opo"])
    assert advantages.tolist() == [[-2.25, 0.0, 0.0], [0.75] * 3, [5.0, 5.0, 0.0], [0.0] * 3]
    assert torch.equal(advantages, returns)


def test_remax_by_hand():
    inputs = AdvantageInputs(
        rewards=torch.tensor([[0.0, 0.0, 1.0], [-0.25, 9.0, 0.5], [0.0, 0.0, 0.0]], dtype=torch.float64),
        mask=torch.tensor([[True, True, True], [True, False, True], [True, False, False]]),
        group_ids=torch.tensor([4, 4, 9]),
        baselines=torch.tensor([0.75, 0.75, 1.0]),
    )
    advantages, returns = compute_advantages(inputs, ALL_ESTIMATORS["remax"])
    assert advantages.tolist() == [[0.25, 0.25, 0.25], [-0.5, 0.0, -0.25], [-1.0, 0.0, 0.0]]
    assert returns.tolist() == [[1.0, 1.0, 1.0], [0.25, 0.0, 0.5], [0.0, 0.0, 0.0]]


def test_remax_without_baselines_is_refused():
    with pytest.raises(ValueError, match="baselines: missing; advantage=remax needs them"):
        compute_advantages(dataclasses.replace(random_inputs(0), baselines=None), ALL_ESTIMATORS["remax"])


def test_reinforce_plus_plus_with_a_baseline_whitens_over_tokens():
    """Centred scores −1 and 1 over 1 and 3 tokens: mean 1/2, squared deviations 9/4 + 3/4 over 3, variance 1."""
    rewards = torch.tensor([[1.0, 9.0, 9.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
    mask = torch.tensor([[True, False, False], [True] * 3])
    inputs = AdvantageInputs(rewards, mask, torch.tensor([0, 0]))
    advantages, _ = compute_advantages(inputs, ALL_ESTIMATORS["reinforce_plus_plus_baseline"])
    assert advantages.tolist() == [pytest.approx([-1.5, 0.0, 0.0]), pytest.approx([0.5] * 3)]


@pytest.mark.parametrize(
    ("num_right", "right", "wrong"),
    [
        # n = 4, k = 2. One right: P = 1 − 3/6, σ = 1/2, a wrong row's other sets fail with C(2,1)/C(3,1) = 2/3.
        (1, 1.0, (0.5 - 2 / 3) / 0.5),
        # Two right: P = 1 − 1/6, σ = sqrt(5)/6, C(1,1)/C(3,1) = 1/3.
        (2, 1 / math.sqrt(5), (1 / 6 - 1 / 3) / (math.sqrt(5) / 6)),
        (3, 0.0, 0.0),  # every pair holds a right row
        (4, 0.0, 0.0),
        (0, 0.0, 0.0),
    ],
)
def test_pass_at_k_by_hand(num_right, right, wrong):
    scores = [1.0] * num_right + [0.0] * (4 - num_right)
    expected = [right] * num_right + [wrong] * (4 - num_right)
    assert by_score(scores, [0] * 4, "pass_at_k").tolist() == pytest.approx(expected)


@pytest.mark.parametrize("k", [1, 2, 3, 5, 9])
def test_pass_at_k_is_the_mean_over_all_sets(k):
    """The definition, by enumeration: a set scores its maximum, standardised over all sets of the group."""
    scores = [0.0, 1.0, 0.0, 0.0, 1.0, 0.0]
    size = min(k, len(scores))
    sets = list(itertools.combinations(range(len(scores)), size))
    best = [max(scores[i] for i in each) for each in sets]
    mean, deviation = statistics.mean(best), statistics.pstdev(best)
    expected = [
        statistics.mean(
            (b - mean) / deviation if deviation else 0.0 for b, s in zip(best, sets, strict=True) if row in s
        )
        for row in range(len(scores))
    ]
    inputs = AdvantageInputs(torch.tensor(scores)[:, None].double(), torch.ones(6, 1, dtype=torch.bool), torch.zeros(6))
    advantages, _ = compute_advantages(inputs, AlgorithmConfig(advantage="pass_at_k", pass_k=k))
    assert advantages[:, 0].tolist() == pytest.approx(expected, abs=1e-12)
