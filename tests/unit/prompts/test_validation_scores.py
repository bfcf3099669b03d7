"""pass@k compared with its definition, scores per dataset, and merging across ranks."""

import itertools
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodyflow.data.metrics import merge_metrics, to_floats
from embodyflow.prompts.validation_scores import Answers, pass_at_k, score_metrics, score_table


@settings(max_examples=30)
@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_choices_with_a_correct_sample(numbers):
    num_samples, num_correct, k = numbers
    correct = [True] * num_correct + [False] * (num_samples - num_correct)
    expected = fmean(any(choice) for choice in itertools.combinations(correct, k))
    assert pass_at_k(num_samples, num_correct, k) == pytest.approx(expected, abs=1e-12)


def test_pass_at_k_of_many_samples():
    assert pass_at_k(10_000, 1, 100) == pytest.approx(0.01)
    assert pass_at_k(10_000, 9_950, 100) == 1.0


@pytest.mark.parametrize(("num_samples", "num_correct", "k"), [(3, 1, 4), (3, 1, 0), (3, 4, 1), (3, -1, 1), (0, 0, 1)])
def test_invalid_counts_are_refused(num_samples, num_correct, k):
    with pytest.raises(ValueError, match="needs 1 <= k <= num_samples"):
        pass_at_k(num_samples, num_correct, k)


def answers(*samples):
    sources, prompts, rewards = zip(*samples, strict=True)
    rewards = np.array(rewards, np.float32)
    return Answers(sources, np.array(prompts), rewards, rewards > 0)


# The same prompt number in two sources is two prompts.
SAMPLES = [
    ("sums", 0, 1.0),
    ("sums", 0, -1.0),
    ("gsm8k", 0, 0.0),
    ("gsm8k", 0, 0.0),
    ("sums", 1, 1.0),
    ("sums", 1, 1.0),
]


def test_scores_by_hand():
    metrics = score_metrics(answers(*SAMPLES), (1, 2), "eval")
    assert to_floats(metrics) == pytest.approx(
        {
            "eval/gsm8k/num_prompts": 1,
            "eval/gsm8k/num_samples": 2,
            "eval/gsm8k/pass@1": 0,
            "eval/gsm8k/pass@2": 0,
            "eval/gsm8k/reward": 0,
            "eval/num_prompts": 3,
            "eval/num_samples": 6,
            "eval/pass@1": 0.5,
            "eval/pass@2": 2 / 3,
            "eval/reward": 1 / 3,
            "eval/sums/num_prompts": 2,
            "eval/sums/num_samples": 4,
            "eval/sums/pass@1": 0.75,
            "eval/sums/pass@2": 1,
            "eval/sums/reward": 0.5,
        }
    )
    table = score_table({**metrics, "perf/evaluate": metrics["eval/reward"]}, "eval")
    assert [row["source"] for row in table] == ["sums", "gsm8k", "all"]
    assert table[0] == {
        "source": "sums",
        "num_prompts": 2,
        "num_samples": 4,
        "reward": 0.5,
        "pass@1": 0.75,
        "pass@2": 1,
    }


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 4), st.integers(0, 1)), min_size=1), st.integers(1, 4))
def test_ranks_with_whole_prompts_merge_to_the_scores_of_all(samples, num_ranks):
    ranks = [[s for s in samples if s[1] % num_ranks == rank] for rank in range(num_ranks)]
    merged = merge_metrics(score_metrics(answers(*rank), (1,), "eval") for rank in ranks if rank)
    assert to_floats(merged) == pytest.approx(to_floats(score_metrics(answers(*samples), (1,), "eval")))


def test_a_prompt_with_fewer_than_k_samples_is_refused():
    with pytest.raises(ValueError, match="k=3, num_samples=2"):
        score_metrics(answers(*SAMPLES), (3,), "eval")
