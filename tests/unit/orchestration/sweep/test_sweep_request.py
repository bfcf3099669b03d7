"""The grid of a sweep and its checks, before any process starts."""

import dataclasses
from pathlib import Path

import pytest

from embodyflow.errors import ConfigError
from embodyflow.orchestration.sweep.grid import combinations, difference, grid_of, short_names, swept
from embodyflow.orchestration.sweep.sweep_request import SweepRequest, parse_sweep, planned

PENDULUM = ("experiment=pendulum", "sweep_id=s")


def refusal(*words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        planned(parse_sweep(words))
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("trainer.learning_rate=1e-3,3e-4", ("0.001", "0.0003")),
        ("algorithm=choice(sac,td3)", ("sac", "td3")),
        ("seed=range(0,3)", ("0", "1", "2")),
        ("seed=range(1,8,step=3)", ("1", "4", "7")),
        ("seed=sort(3,1,2)", ("1", "2", "3")),
        ("algorithm=glob(*po,exclude=[g*,s*,d*])", ("cispo", "opo", "ppo")),
        ("env.tasks=[reach-v3,push-v3]", ("[reach-v3,push-v3]",)),
        ("env.tasks=[reach-v3],[push-v3]", ("[reach-v3]", "[push-v3]")),
    ],
)
def test_the_grammar_is_hydras(word: str, values: tuple[str, ...]) -> None:
    assert grid_of([word]) == {word.partition("=")[0]: values}


def test_the_last_key_changes_fastest() -> None:
    grid = grid_of(["a=1,2", "b=x", "seed=0,1"])
    assert swept(grid) == ["a", "seed"]
    assert [" ".join(each.values()) for each in combinations(grid)] == ["1 x 0", "1 x 1", "2 x 0", "2 x 1"]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "trainer.learning_rate=interval(0,1)",
            "has no finite list of values; allowed are a,b and choice(a,b), range(",
        ),
        ("seed=shuffle(range(3))", "is in a random order that no seed repeats"),
        ("algorithm=glob(zz*)", "matches no file; allowed are cispo, clip_cov"),
        ("seed=glob(*)", "matches no file; allowed are globs of a configuration group"),
        ("seed=range(3,0)", "has no values"),
        ("seed=1,", "is not in Hydra's grammar"),
        ("run_id=mine", "is not allowed in a sweep; the sweep names its runs"),
        ("resume=mine", "is not allowed in a sweep; the same command with if_exists=resume"),
        ("run_root=a,b", "must be one folder"),
    ],
)
def test_a_word_that_spans_no_grid_is_refused(word: str, message: str) -> None:
    assert refusal(word).startswith(f"{word}: {message}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("trainer.learning_rate=1e-3,-1", "seed=0"),
            "s-2 (trainer.learning_rate=-1): trainer.learning_rate=-1: input should be greater than 0",
        ),
        (("policy.hidden_siz=8,16",), "s-1 (policy.hidden_siz=8): policy.hidden_siz=8: no such key; did you mean"),
        (
            ("trainer.learning_rate=1e-3,0.001",),
            "s-2 (trainer.learning_rate=0.001): is the same run as s-1; leave one of the two values out",
        ),
        (("seed=range(0,3)", "max_runs=2"), "max_runs=2: the sweep has 3 runs; narrow it, or set max_runs=3"),
        (("seed=0", "seed=1"), "seed=1: seed is given twice"),
        (("metric=eval/return",), "s-1 (the only run): metric=eval/return: needs evaluation, which is null"),
        (
            ("metric=rolout/reward",),
            "s-1 (the only run): metric=rolout/reward: no run has it; did you mean rollout/reward?",
        ),
        (("concurrency=0",), "concurrency=0: must be at least 1"),
        (("concurrency=two",), "concurrency=two: must be a whole number"),
        (
            ("direction=minimize",),
            "direction=minimize: needs metric=…; without one runs are ranked by eval/",
        ),
        (("direction=up",), "direction=up: must be maximize or minimize"),
        (("stop_at_failure=yes",), "stop_at_failure=yes: must be true or false"),
        (("if_exists=replace",), "if_exists=replace: must be refuse or resume"),
    ],
)
def test_a_mistake_in_any_combination_is_one_line(words: tuple[str, ...], message: str) -> None:
    assert refusal(*PENDULUM, *words).startswith(message)


def test_a_name_that_is_no_folder_is_refused() -> None:
    assert refusal("experiment=pendulum", "sweep_id=../s").startswith(
        "sweep_id=../s: ../s-1 must be a name of the form"
    )


def test_each_combination_has_its_own_flow_and_configuration() -> None:
    plan = planned(parse_sweep(["experiment=pendulum,reacher", "seed=0,1", "sweep_id=s", "metric=my/own"]))
    shown = [(each.run_id, each.config.flow, each.config.experiment, each.config.seed) for each in plan.combinations]
    pendulum, reacher = ("sac", "pendulum"), ("ppo", "reacher")
    assert shown == [("s-1", *pendulum, 0), ("s-2", *pendulum, 1), ("s-3", *reacher, 0), ("s-4", *reacher, 1)]
    last = plan.combinations[-1]
    assert last.config.run_id == "s-4" and last.words == ["experiment=reacher", "seed=1"]
    assert last.request().parameters()["seed"] == 1 and last.request().run_id == "s-4"


def test_numbers_have_the_width_of_the_largest() -> None:
    plan = planned(SweepRequest("s", "pendulum", ("seed=range(0,10)",)))
    assert [plan.combinations[0].run_id, plan.combinations[-1].run_id] == ["s-01", "s-10"]


def test_parameters_of_the_flow_make_the_same_request() -> None:
    request = parse_sweep([*PENDULUM, "seed=0,1", "concurrency=2", "stop_at_failure=true", "max_runs=9"])
    parameters = request.parameters()
    assert dataclasses.replace(request, **(parameters | {"overrides": tuple(parameters["overrides"])})) == request
    assert (request.concurrency, request.stop_at_failure, request.max_runs) == (2, True, 9)


def test_a_difference_names_each_key_and_ignores_the_order() -> None:
    kept = {"a": ("1", "2"), "b": ("x",), "c": ("y",)}
    assert difference(kept, {"b": ("x",), "c": ("y",), "a": ("2", "1")}) == []
    assert difference(kept, {"a": ("1",), "b": ("x",), "d": ("z",)}) == [
        "a=1: it has a=1,2",
        "c is left out, the sweep has c=y",
        "d=z: it does not set it",
    ]


def test_keys_are_short_where_that_is_unambiguous() -> None:
    names = short_names(["trainer.learning_rate", "critic.learning_rate", "+policy.hidden_size"])
    assert list(names.values()) == ["trainer.learning_rate", "critic.learning_rate", "hidden_size"]
    assert short_names(["env.seconds"], taken=["rank", "seconds"]) == {"env.seconds": "env.seconds"}


def test_checking_writes_nothing(tmp_path: Path) -> None:
    planned(SweepRequest("s", "pendulum", (f"run_root={tmp_path}/runs",)))
    assert list(tmp_path.iterdir()) == []
