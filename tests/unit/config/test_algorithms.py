"""Every experiment composes with every algorithm, or is refused in one line with the reason."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from embodyflow.config import RunConfig
from embodyflow.config.composition import compose
from embodyflow.config.composition.compose import (
    algorithms,
    chosen_flow,
    compose_config,
    default_algorithm,
    experiments,
)
from embodyflow.errors import ConfigError
from embodyflow.orchestration.request.compatibility import check_compatibility

NO_GROUPS = "needs groups of siblings, and a control job's episodes have none; allowed with job=control are ppo"
NO_STATES = "is for embodied jobs; it compares the states of episodes, and a response has none; allowed with job="
NO_CLASSIFIER = "is for embodied jobs; it classifies the states of episodes, and a response has none; allowed with job="
NO_STEPS = "is for control jobs; it learns from single steps; allowed with job="
NO_ACTIONS = "is for jobs with continuous actions; a response has none; allowed with job="
NO_NOISE = "is for embodied jobs; it steers a policy that denoises; allowed with job="
MANY_TASKS = {
    "rlpd": "env.tasks: policy.name=mlp_chunks reads no instruction, so it learns one task; there are ",
    "drq": "env.tasks: policy.name=cnn_chunks reads no instruction, so it learns one task; there are ",
    "dsrl": "env.tasks: policy.name=steered_smolvla reads no instruction, so it learns one task; there are ",
}
NO_IMAGES = "is for embodied jobs, whose episodes have images; allowed with job=control are ppo"
IMAGES_OF_ROBOTS = "is for embodied jobs; it learns from images; allowed with job="
NO_EXPERT = "is for embodied jobs; its expert is the environment's; allowed with job="
DISCRETE = "needs continuous actions, and cart_pole has discrete ones; allowed with job=control are ppo"
CONTROL, LANGUAGE = (
    (
        "adroit_door",
        "cart_pole",
        "cartpole_swingup",
        "fetch_reach",
        "half_cheetah",
        "panda_reach",
        "pendulum",
        "reacher",
    ),
    (*("babyai", "calculator", "gemma_sums", "gsm8k", "kuhn", "math", "reasoning_gym", "self_correct"),),
)
FOR_CONTROL = ("ppo", "sac", "td3", "crossq", "rlpd", "iql")
OFF_POLICY = ("sac", "td3", "crossq", "rlpd", "iql")
REFUSED = {
    **{
        (experiment, name): NO_GROUPS
        for experiment in CONTROL
        for name in algorithms()
        if name not in (*FOR_CONTROL, "dagger", "dsrl", "drq")
    },
    **{(experiment, "dagger"): NO_EXPERT for experiment in (*CONTROL, *LANGUAGE)},
    **{(experiment, "dsrl"): NO_NOISE for experiment in (*CONTROL, *LANGUAGE)},
    **{(experiment, "drq"): NO_IMAGES for experiment in CONTROL},
    **{(experiment, "drq"): IMAGES_OF_ROBOTS for experiment in LANGUAGE},
    **{(experiment, "srpo"): NO_STATES for experiment in LANGUAGE},
    **{(experiment, "success_classifier"): NO_CLASSIFIER for experiment in LANGUAGE},
    **{
        (experiment, name): NO_STEPS
        for experiment in experiments()
        for name in ("sac", "td3", "crossq", "iql")
        if experiment not in CONTROL
    },
    **{(experiment, "rlpd"): NO_ACTIONS for experiment in LANGUAGE},
    **{("cart_pole", name): DISCRETE for name in OFF_POLICY},
    **{(experiment, name): reason for experiment in ("mt10", "libero", "mixed") for name, reason in MANY_TASKS.items()},
    **{("push_diffusion", name): "trains another policy than the experiment's" for name in ("rlpd", "drq", "dsrl")},
    ("mixed", "dagger"): "dagger: must be null with env.members",
    ("libero_openvla", "dagger"): "begins with the demonstrations of a warm start",
    ("libero_openvla", "rlpd"): "its policy reads states, and the experiment shows images",
    ("libero_openvla", "drq"): "trains another policy than the experiment's",
    ("libero_openvla", "dsrl"): "its actor reads the state alone, and the experiment's state shows no objects",
}
ONE_ADVANTAGE = {
    **{name: f"algorithm.per_agent=true: loss={name} needs one advantage per row" for name in ("gmpo", "gspo")},
    "remax": "algorithm.per_agent=true: advantage=remax compares with one greedy reward for all agents",
}
REFUSED |= {("kuhn", name): reason for name, reason in ONE_ADVANTAGE.items()}
NO_AGENTS = {
    **dict.fromkeys(("gemma_sums", "gsm8k", "math", "reasoning_gym"), "algorithm.per_agent=true: only agent jobs have"),
    **dict.fromkeys(("babyai", "calculator", "self_correct"), "algorithm.per_agent=true: needs rollout.agent.agents"),
    **dict.fromkeys({*experiments()} - {*LANGUAGE}, "is for agent jobs; it keeps a baseline for each agent"),
}
REFUSED |= {(experiment, "rae"): reason for experiment, reason in NO_AGENTS.items()}
MACHINE = {
    "gemma_sums": ("policy.path=model",),
    "gsm8k": ("policy.path=model",),
    "libero_openvla": ("policy.path=model",),
    "reacher": ("policy.state_dim=10", "policy.action_dim=2"),
}
"""Overrides for experiments that take something from files or simulators of the machine."""
REPLAYED = {
    **{"cartpole_swingup": (5, 1), "fetch_reach": (16, 4), "half_cheetah": (17, 6), "panda_reach": (12, 3)},
    **{"pendulum": (3, 1), "reacher": (10, 2), "adroit_door": (46, 7)},
}
"""Numbers of a state and of an action."""
DIFFERENT = (
    *("cart_pole", "half_cheetah", "fetch_reach", "embodied", "mt10", "libero_openvla", "math", "calculator", "kuhn"),
)
"""An experiment of each kind: its job, its actions, its tasks, its policy and its agents differ from the others'."""


@pytest.fixture(autouse=True)
def any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the checks that depend on this machine: models, data, simulators."""

    def no_check(reference: str) -> Callable[[Any], None]:
        return lambda config: None

    monkeypatch.setattr(compose, "resolve", no_check)


def cells() -> Iterator[Any]:
    """Yield all cells; those of experiments much like another one are slow, since a cell takes a fifth of a second."""
    for experiment in experiments():
        marks = () if experiment in DIFFERENT else (pytest.mark.slow,)
        yield from (pytest.param(experiment, algorithm, marks=marks) for algorithm in algorithms())


@pytest.mark.parametrize(("experiment", "algorithm"), cells())
def test_every_cell_composes_or_is_refused_with_a_reason(experiment: str, algorithm: str, tmp_path: Path) -> None:
    words = [f"experiment={experiment}", f"algorithm={algorithm}", *MACHINE.get(experiment, ())]
    if algorithm in ("rlpd", "iql") and experiment in CONTROL:
        state, action = REPLAYED.get(experiment, (4, 1))
        facts = {"length": 9, "state_dim": state, "action_dim": action}
        (tmp_path / "replay.json").write_text(json.dumps(facts))
        words.append(f"off_policy.demonstrations={tmp_path}")
    elif algorithm in ("rlpd", "drq", "dsrl") and experiment not in LANGUAGE:
        words += ["policy.state_dim=30", "policy.action_dim=4"]  # the environment's
    elif experiment == "mixed":
        words += ["policy.state_dim=36", "policy.action_dim=4", "policy.member_action_dims=[4,4,2]"]
    if reason := REFUSED.get((experiment, algorithm)):
        with pytest.raises(ConfigError) as refusal:
            compose_config(words)
        assert str(refusal.value).startswith((f"algorithm={algorithm}: {reason}", reason))
        return
    config = compose_config(words)
    check_compatibility(config)
    assert (config.experiment, config.algorithm_name) == (experiment, algorithm)
    assert config.flow == chosen_flow(words)


def test_there_are_few_refusals() -> None:
    control = len(CONTROL) * (len(algorithms()) - len(FOR_CONTROL) - 1) + len(OFF_POLICY)  # dagger and dsrl among them
    others = 4 * (len(experiments()) - len(CONTROL))  # sac, td3, crossq and iql
    several_tasks, another_policy = 3 * 4, 3  # with rlpd, drq and dsrl
    no_dagger = 2  # mixed and libero_openvla
    assert len(REFUSED) == (
        control
        + others
        + no_dagger
        + 6 * len(LANGUAGE)
        + len(ONE_ADVANTAGE)
        + len(NO_AGENTS)
        + several_tasks
        + another_policy
    )


@pytest.mark.parametrize(
    ("experiment", "algorithm"),
    [
        *(("embodied", "grpo"), ("push", "grpo"), ("mt10", "grpo"), ("libero", "grpo"), ("stack", "dagger")),
        *(("math", "dr_grpo"), ("gsm8k", "dr_grpo"), ("reacher", "ppo"), ("half_cheetah", "ppo")),
        *(("cart_pole", "ppo"), ("pendulum", "sac"), ("fetch_reach", "sac"), ("panda_reach", "sac")),
        *(("cartpole_swingup", "sac"), ("aloha", "grpo"), ("door", "dagger"), ("adroit_door", "ppo")),
        ("so101", "dagger"),
    ],
)
def test_an_experiment_passes_its_default_algorithm_to_its_children(experiment: str, algorithm: str) -> None:
    words = [f"experiment={experiment}", *MACHINE.get(experiment, ())]
    assert compose_config(words).algorithm_name == algorithm
    assert default_algorithm(experiment, chosen_flow(words)) == algorithm
    assert default_algorithm(experiment, "gspo") == "gspo"


def shape(config: RunConfig) -> tuple[int, int, int]:
    return config.rollout.num_groups, config.rollout.group_size, config.trainer.num_minibatches  # type: ignore[attr-defined]


def test_a_recipe_depends_on_the_kind_of_job_and_an_experiment_extends_it() -> None:
    assert shape(compose_config(["experiment=push", "algorithm=ppo"])) == (64, 2, 4)
    assert shape(compose_config(["experiment=drawer_open", "algorithm=ppo"])) == (64, 2, 4)
    assert shape(compose_config(["experiment=mt10", "algorithm=ppo"])) == (120, 2, 4)
    gsm8k = compose_config(["experiment=gsm8k", "algorithm=ppo", *MACHINE["gsm8k"]])
    assert shape(gsm8k) == (128, 2, 1) and gsm8k.algorithm.lam == 1.0  # lam is math's


def test_the_command_line_overrides_a_recipe_and_the_recipe_overrides_the_experiment() -> None:
    words = ["experiment=push", "algorithm=ppo", "rollout.num_groups=8"]
    assert shape(compose_config(words)) == (8, 2, 4)
    assert shape(compose_config([*words, "trainer.num_minibatches=1"])) == (8, 2, 1)
    assert compose_config(["experiment=push", "algorithm=ppo", "pipeline.name=ppo_kl_reward"]).pipeline.name == (
        "ppo_kl_reward"
    )


def test_a_custom_graph_composes_with_any_algorithm() -> None:
    config = compose_config(["experiment=reacher", "algorithm=grpo", "pipeline.yaml=mine.yaml"])
    assert config.pipeline.source() == {"yaml": "mine.yaml"}


def test_a_mistyped_algorithm_is_answered_with_the_nearest_and_the_folder() -> None:
    with pytest.raises(ConfigError) as refusal:
        compose_config(["algorithm=grop"])
    assert str(refusal.value).startswith("algorithm=grop: allowed are cispo, ")
    assert str(refusal.value).endswith("(configs/algorithm); did you mean grpo?")
