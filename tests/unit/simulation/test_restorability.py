"""Environments whose seed does not restore an episode are refused before a run starts, or named in its reports."""

from typing import Any

import pytest
from refusals import refusal

from embodyflow.config.composition.compose import compose_config
from embodyflow.config.robots.environment import EnvConfig
from embodyflow.simulation.make_env import unrestorable_tasks

SIZES = ("policy.state_dim=null", "policy.action_dim=null")
EMBODIED = (
    *("experiment=embodied", "env.tasks=[go]", "env.max_steps=20", "env.adapter.success_info=success"),
    *("warm_start=null", *SIZES),
)
CONTROL = ("experiment=reacher", "env.max_steps=20", *SIZES)
NORMALIZE = "gymnasium.wrappers:NormalizeObservation"
REWARDS = "gymnasium.wrappers:NormalizeReward"
FLATTEN = "gymnasium.wrappers:FlattenObservation"
COUNTED = "unrestorable_envs:Counted"


def env_id(kind: str) -> str:
    return f"env.id=unrestorable_envs:{kind}-v0"


@pytest.mark.parametrize("job", [EMBODIED, CONTROL], ids=["embodied", "control"])
@pytest.mark.parametrize(
    ("kind", "difference"),
    [
        ("GlobalStart", "after another episode the observation 'state' after the reset differs"),
        ("GlobalSteps", "after another episode the observation 'state' after step 1 differs"),
        ("LateNoise", "after another episode the reward after step 10 differs"),
        ("Curriculum", "after another episode the observation 'state' after the reset differs"),
        ("OwnScene", "in another instance the observation 'state' after the reset differs"),
    ],
)
def test_an_environment_that_its_seed_does_not_restore_is_refused(
    job: tuple[str, ...], kind: str, difference: str
) -> None:
    message = refusal(*job, env_id(kind))
    of_task = " of task 'go'" if job is EMBODIED else ""
    # The adapter seeds `np_random`, but no other generator.
    assert message.startswith(
        f"env.id=unrestorable_envs:{kind}-v0: reset(seed=0) does not restore goal 0{of_task}: {difference}; "
    )
    assert message.endswith("; env.allow_unrestorable=true trains nevertheless and says so in every report")


@pytest.mark.parametrize("job", [EMBODIED, CONTROL], ids=["embodied", "control"])
@pytest.mark.parametrize("kind", ["SeedsGlobally", "SharedScene"])
def test_an_environment_that_another_one_in_its_process_changes_is_refused(job: tuple[str, ...], kind: str) -> None:
    message = refusal(*job, env_id(kind))
    assert (
        ": beside another environment in its process the observation 'state' after step 1 differs; draw from "
        "self.np_random only and keep nothing outside of the instance, or give each environment a process by "
        "rollout.env_processes; env.allow_unrestorable=true" in message
    )


def test_environments_that_share_a_process_are_probed_in_it_and_others_alone() -> None:
    words = (*CONTROL, env_id("SeedsGlobally"), "rollout.envs_per_worker=2")
    assert "beside another environment" in refusal(*words, "rollout.env_processes=1")
    assert compose_config([*words, "rollout.env_processes=2"]).env.allow_unrestorable is False


@pytest.mark.parametrize("job", [EMBODIED, CONTROL], ids=["embodied", "control"])
def test_an_environment_that_an_episodes_end_changes_is_refused(job: tuple[str, ...]) -> None:
    compose_config([*job, env_id("AfterEnd")])  # episodes of 20 steps do not change it
    message = refusal(*job, env_id("AfterEnd"), "env.max_steps=100")
    assert "after another episode the observation 'state' after the reset differs" in message


@pytest.mark.parametrize("job", [EMBODIED, CONTROL], ids=["embodied", "control"])
def test_an_environment_that_its_seed_restores_is_accepted(job: tuple[str, ...]) -> None:
    assert compose_config([*job, env_id("Restored")]).env.allow_unrestorable is False


@pytest.mark.parametrize(
    ("wrappers", "blamed"),
    [
        ([NORMALIZE], [NORMALIZE]),
        ([REWARDS], [REWARDS]),  # the rewards of the first steps are 0, with and without the wrapper
        ([FLATTEN, NORMALIZE], [NORMALIZE]),
        ([COUNTED, FLATTEN], [COUNTED]),
        ([NORMALIZE, FLATTEN, REWARDS], [NORMALIZE, REWARDS]),
    ],
)
@pytest.mark.parametrize("job", [EMBODIED, CONTROL], ids=["embodied", "control"])
def test_the_stateful_wrappers_are_named(job: tuple[str, ...], wrappers: list[str], blamed: list[str]) -> None:
    message = refusal(*job, env_id("Restored"), f"env.adapter.wrappers=[{','.join(wrappers)}]")
    assert message.startswith(f"env.adapter.wrappers={', '.join(blamed)}: reset(seed=0) does not restore goal 0")
    assert "policy.normalize_observations=true" in message


def test_the_environment_is_named_if_it_is_not_restored_without_wrappers_either() -> None:
    message = refusal(*EMBODIED, env_id("GlobalStart"), f"env.adapter.wrappers=[{NORMALIZE}]")
    assert message.startswith("env.id=unrestorable_envs:GlobalStart-v0: reset(seed=0) does not restore")


@pytest.mark.parametrize("wrappers", [[FLATTEN], ["unrestorable_envs:frozen_statistics"]])
def test_a_wrapper_without_state_is_accepted(wrappers: list[str]) -> None:
    compose_config([*EMBODIED, env_id("Restored"), f"env.adapter.wrappers=[{','.join(wrappers)}]"])


@pytest.mark.parametrize("processes", [0, 1])
def test_every_task_is_probed(processes: int) -> None:
    """The first task is restored, and the other two are not."""
    message = refusal(
        *EMBODIED,
        "env.id=unrestorable_envs:Chosen-v0",
        "env.tasks=[one,two,three]",
        "rollout.num_groups=6",
        "env.adapter.task_kwargs={two:{kind:GlobalSteps},three:{kind:Curriculum}}",
        f"rollout.env_processes={processes}",
    )
    assert "does not restore goal 0 of task 'two' and 1 other task: " in message


def test_allowed_environments_are_reported_by_task() -> None:
    words = [*EMBODIED, env_id("Curriculum"), "env.allow_unrestorable=true"]
    assert compose_config(words).unrestorable() == {
        "go": "env.id=unrestorable_envs:Curriculum-v0: after another episode the observation 'state' after the reset "
        "differs"
    }
    words = [*CONTROL, "env.id=unrestorable_envs:Curriculum-v0", "env.allow_unrestorable=true"]
    assert list(compose_config(words).unrestorable()) == ["unrestorable_envs:Curriculum-v0"]
    assert compose_config([*EMBODIED, env_id("Restored"), "env.allow_unrestorable=true"]).unrestorable() == {}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("NaNReward", "the reward of its step() must be a finite number, is nan"),
        ("Raises", "task 'go': raised in its first steps: ZeroDivisionError: the gripper has no mass"),
    ],
)
def test_an_environment_that_fails_in_its_first_steps_is_refused(kind: str, message: str) -> None:
    assert refusal(*EMBODIED, env_id(kind)) == f"env.id=unrestorable_envs:{kind}-v0: {message}"


def test_a_key_of_success_that_some_steps_lack_is_refused_at_the_start() -> None:
    words = (*EMBODIED, env_id("OftenSilent"))
    assert refusal(*words) == (
        "env.adapter.success_info='success': info has no such key; it has none; success_absent=not_yet allows that"
    )
    compose_config([*words, "env.adapter.success_absent=not_yet"])


@pytest.mark.parametrize("name", ["Pendulum-v1", "MountainCarContinuous-v0"])
def test_gymnasiums_own_environments_are_restored(name: str) -> None:
    adapter: dict[str, Any] = {"success_termination": True}
    env = EnvConfig.model_validate({"id": name, "tasks": ["go"], "max_steps": 50, "adapter": adapter})
    assert unrestorable_tasks(env) == {}
