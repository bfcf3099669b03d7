"""Reward functions of verl and TRL, unchanged, and a function per dataset."""

import pytest
from borrowed_rewards import ASKED
from pydantic import ValidationError

from embodyflow.errors import RewardError
from embodyflow.rewards.interface import Sample, Score
from embodyflow.rewards.reward_config import RewardConfig
from embodyflow.rewards.reward_registry import build_reward_manager

FUNCTIONS = "borrowed_rewards"


def sample(response, truth="34", source="sums", **changes):
    row = {"extra_info": {"index": 7}, "solution": truth, "ability": "math", "completion": "not passed on"}
    return Sample(1, "p", response, truth, source, 3, True, **{"row": row, "token_ids": (5, 6, 7), **changes})


def score(function, samples, manager="naive", **settings):
    config = {"name": "custom", "function": function.replace("here:", f"{FUNCTIONS}:"), **settings}
    built = build_reward_manager(RewardConfig(function=config, manager={"name": manager}))
    try:
        return built.score(samples)
    finally:
        built.close()


@pytest.mark.parametrize("manager", ["naive", "batch"])
def test_a_function_of_verl_runs_unchanged(manager):
    scores = score("verl:here:compute_score", [sample("34"), sample("35")], manager)
    assert scores == [Score(1.0, True, {"acc": 1.0, "index": 7.0}), Score(-1.0, False, {"acc": 0.0, "index": 7.0})]
    plain = "verl:here:compute_score_plain"
    samples = [sample("34", row={}), sample("35", row={})]
    assert [(s.reward, s.correct) for s in score(plain, samples, manager)] == [(pytest.approx(0.9), True), (0.0, False)]
    [high] = score(plain, samples[:1], manager, correct_above=0.95)
    [more] = score(plain, samples[1:], manager, kwargs={"bonus": 0.25})
    assert (high.correct, more.reward) == (False, 0.25)


@pytest.mark.parametrize(
    ("accuracy", "correct"), [(True, True), (1, True), (1.0, True), (False, False), (0.3, False), (None, True)]
)
def test_a_verdict_is_true_or_at_least_one(accuracy, correct):
    function = "verl:here:compute_score_with"
    [given] = score(function, [sample("34")], kwargs={"accuracy": accuracy}, correct_above=0.9)
    assert (given.reward, given.correct) == (2.0, correct)
    [high] = score(function, [sample("34")], kwargs={"accuracy": True}, correct_above=9)
    assert high.correct


@pytest.mark.parametrize(("accuracy", "message"), [("False", "acc=False"), (float("nan"), "acc=nan"), ([1], "acc=")])
def test_a_verdict_of_another_kind_is_an_error(accuracy, message):
    with pytest.raises(RewardError, match=f"returned {message}.*; allowed are true, false and finite numbers"):
        score("verl:here:compute_score_with", [sample("34")], kwargs={"accuracy": accuracy})


def test_a_part_that_is_no_finite_number_is_an_error():
    with pytest.raises(RewardError, match="returned style=nan; allowed are finite numbers"):
        score("verl:here:compute_score_with", [sample("34")], kwargs={"accuracy": True, "style": float("nan")})


@pytest.mark.parametrize("manager", ["naive", "batch"])
def test_a_function_of_trl_runs_unchanged(manager):
    samples = [sample("34", messages=ASKED), sample("35", messages=ASKED)]
    assert score("trl:here:accuracy_reward", samples, manager) == [Score(1.0, True), Score(0.0, False)]
    assert [each.reward for each in score("trl:here:length_reward", [sample("34")], manager)] == [302.0]
    assert score("trl:here:prompt_reward", [sample("34"), samples[0]], manager) == [Score(1.0, True)] * 2


def test_they_run_in_the_processes_of_the_pool():
    [right] = score("verl:here:compute_score_plain", [sample("34")], "parallel")
    [wrong] = score("trl:here:accuracy_reward", [sample("35", messages=ASKED)], "parallel")
    assert (right.reward, right.correct, wrong) == (pytest.approx(0.9), True, Score(0.0, False))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("verl:here:compute_score_without_score", "returned a dict without score; it has reward"),
        ("verl:here:compute_score", "KeyError: 'index'"),
        ("trl:here:nothing", "returned the reward None; allowed are finite numbers"),
        ("trl:here:one_for_all", "must return a list of 1 rewards, not 1.0"),
        ("trl:here:accuracy_reward", "missing a required argument: 'solution'; it is called with prompts, completions"),
    ],
)
def test_an_answer_of_another_form_names_the_row(function, message):
    with pytest.raises(RewardError, match=message):
        score(function, [sample("34", row={})])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("verl:compute_score", "names no module; write 'verl:module:function'"),
        ("verl:math:squrt", "'math' has no attribute 'squrt'"),
        (f"verl:{FUNCTIONS}:accuracy_reward", "function=verl:.*: missing a required argument: 'completions'; it is"),
        ("trl:math:pi", "is a float; allowed is a function"),
    ],
)
def test_a_function_of_another_interface_is_refused(function, message):
    with pytest.raises(ValidationError, match=message):
        RewardConfig(function={"name": "custom", "function": function})


def by_source(**settings):
    return RewardConfig(
        function={"name": "by_source", "functions": {"gsm8k": {"name": "gsm8k"}}, **settings},
        manager={"name": "naive"},
    )


def test_each_dataset_has_its_own_function():
    manager = build_reward_manager(by_source(default={"name": "custom", "function": f"{FUNCTIONS}:ours"}))
    samples = [sample("#### 34", source="gsm8k"), sample("34", source="gsm8k"), sample("34", source="other")]
    assert [each.correct for each in manager.score(samples)] == [True, False, True]
    manager = build_reward_manager(by_source())
    with pytest.raises(RewardError, match="no function for data_source=other; has gsm8k"):
        manager.score(samples)


def test_a_dataset_without_a_function_is_refused():
    by_source(default={"name": "gsm8k"}).check_sources(["gsm8k", "other"])
    RewardConfig(function={"name": "gsm8k"}).check_sources(["other"])
    with pytest.raises(
        ValueError,
        match=r"^reward.function.functions: has no function for data_source=other; it has gsm8k; set one, or reward",
    ):
        by_source().check_sources(["gsm8k", "other", "other"])


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        ({}, "functions or default must be set"),
        ({"a": {"name": "math"}}, "function.functions.a.name=math may never finish"),
        ({"a": {"name": "custom", "function": "verl:math:squrt"}}, "has no attribute 'squrt'"),
    ],
)
def test_functions_of_datasets_are_checked(functions, message):
    with pytest.raises(ValidationError, match=message):
        by_source(functions=functions)
