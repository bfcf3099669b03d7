"""Gymnasium environments by text: spaces, verdicts, and failures that leave an episode as it was."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import pytest
import text_envs
from gymnasium import spaces
from text_envs import PLACES

from embodyflow.agents.episode import Faults
from embodyflow.agents.gymnasium.text_environment import (
    EnvironmentFailedError,
    NotRepeatableError,
    Step,
    TextEnvironment,
    build_environment,
)
from embodyflow.agents.gymnasium.text_spaces import TextSpaces
from embodyflow.config.agents.gymnasium_text import GymnasiumConfig
from embodyflow.errors import ConfigError

CORRIDOR = {"id": "text_envs:Corridor-v0", "observation": PLACES, "actions": ("back", "On ")}
TEXTS = {"id": "text_envs:Corridor-v0", "kwargs": {"text": True}}


@pytest.fixture(autouse=True)
def no_faults_left() -> Iterator[None]:
    text_envs.FAULTS.clear()
    yield
    assert not any(text_envs.FAULTS.values()), "a fault did not occur"


def config(**values: Any) -> GymnasiumConfig:
    return GymnasiumConfig.model_validate({**CORRIDOR, **values})


def walk(chosen: GymnasiumConfig, texts: list[str], seed: int = 2) -> tuple[TextEnvironment, Faults]:
    """Play the actions that the texts name."""
    faults = Faults()

    async def play() -> TextEnvironment:
        env = TextEnvironment(chosen, seed, faults)
        await env.reset()
        for text in texts:
            await env.step(env.spaces.action(text))
        return env

    return asyncio.run(play()), faults


def test_names_stand_for_the_numbers_of_discrete_spaces() -> None:
    env, _ = walk(config(), ["on", " ON", "back"][:2])
    assert env.steps == [Step("place 2"), Step("place 3"), Step("place 4", 1.0, terminated=True)]
    assert env.total_reward == 1.0 and env.success
    assert [env.spaces.action(text) for text in ("back", "wait", "on on", "")] == [0, None, None, None]
    assert env.spaces.text_of(1) == "On "
    with pytest.raises(ValueError, match="action 2 has no name; names are back, On "):
        env.spaces.text_of(2)


def test_text_spaces_pass_as_they_are() -> None:
    env, _ = walk(GymnasiumConfig.model_validate(TEXTS), ["on", "back"])
    assert [step.text for step in env.steps] == ["place 2", "place 3", "place 2"]
    assert env.spaces.action("on!") is None and env.spaces.action("far away") is None  # not in the space
    assert env.spaces.text_of("on") == "on"


def place(observation: int, num_steps: int) -> str:
    return f"{num_steps}: {observation}"


def test_a_function_describes_observations() -> None:
    env, _ = walk(config(observation=f"{__name__}:place"), ["on"])
    assert [step.text for step in env.steps] == ["0: 12", "1: 13"]


@pytest.mark.parametrize(("success", "texts", "verdict"), [
    ("reward", ["on", "on"], False), ("terminated", ["on", "on"], True),
    ("reward", ["back"] * 8, False), ("terminated", ["back"] * 8, False),
])  # fmt: skip
def test_success_is_a_positive_return_or_a_termination(success: str, texts: list[str], verdict: bool) -> None:
    env, _ = walk(config(success=success, kwargs={"paid": -1.0}), texts)
    assert env.success is verdict
    assert env.steps[-1].truncated is (len(texts) == 8)


@pytest.mark.parametrize("step", [0, 1, 2])
@pytest.mark.parametrize("kind", ["error", "hang"])
def test_a_failure_leaves_the_episode_as_it_was(step: int, kind: str) -> None:
    undisturbed, none = walk(config(), ["on", "on"])
    text_envs.FAULTS[2, step] = [kind, kind]
    env, faults = walk(config(step_timeout=0.2), ["on", "on"])
    assert env.steps == undisturbed.steps
    assert (faults.retries, none.retries) == (2, 0)


def test_an_environment_that_goes_on_failing_is_an_infrastructure_failure() -> None:
    text_envs.FAULTS[2, 1] = ["error"] * 3
    with pytest.raises(EnvironmentFailedError, match=r"Corridor-v0, seed 2: OSError: the simulator is gone"):
        walk(config(), ["on"])
    text_envs.FAULTS[2, 0] = ["hang"]
    with pytest.raises(EnvironmentFailedError, match=r"TimeoutError: .*\(step_timeout=0.2\)"):
        walk(config(retries=0, step_timeout=0.2), [])


def test_an_environment_that_shows_something_else_after_a_failure_is_refused() -> None:
    text_envs.FAULTS[2, 1] = ["error"]
    drifting = GymnasiumConfig.model_validate({**TEXTS, "kwargs": {"text": True, "drifts": True}})
    with pytest.raises(NotRepeatableError, match=r"step 0 gave .* it must depend on its seed and actions alone"):
        walk(drifting, ["on"])


def test_a_reward_that_is_no_number_is_a_failure() -> None:
    with pytest.raises(EnvironmentFailedError, match="reward of step 2 is nan"):
        walk(config(kwargs={"paid": math.nan}), ["on", "on"])


DISCRETE, TEXT, BOX = spaces.Discrete(3), spaces.Text(5), spaces.Box(0, 1, (2,))


@pytest.mark.parametrize(
    ("values", "observations", "actions", "message"),
    [
        ({"observation": None}, BOX, DISCRETE, "observation=null: needs a Text space, and the environment has Box"),
        ({"observation": ("a",)}, DISCRETE, DISCRETE, "observation: has 1 names, and the environment has Discrete"),
        ({"observation": ("a", "b")}, BOX, DISCRETE, "observation: has 2 names, and the environment has Box"),
        ({"observation": "math:nothing"}, BOX, DISCRETE, "observation=math:nothing: .* has no attribute 'nothing'"),
        ({"observation": "math:pi"}, BOX, DISCRETE, "observation=math:pi: is a float; allowed is a function"),
        ({"actions": None}, TEXT, DISCRETE, "actions=null: needs a Text space, and the environment has Discrete"),
        ({"actions": ("a",)}, TEXT, BOX, "actions: has 1 names, and the environment has Box"),
        ({"actions": tuple("abcd")}, TEXT, DISCRETE, "actions: has 4 names, and the environment has Discrete"),
    ],
)
def test_a_configuration_that_does_not_fit_the_spaces_is_refused(
    values: dict[str, Any], observations: Any, actions: Any, message: str
) -> None:
    chosen = {"id": "any", "observation": None, "actions": ("a", "b"), **values}
    if observations is TEXT:
        chosen["observation"] = None
    with pytest.raises(ConfigError, match=rf"^rollout\.agent\.gymnasium\.{message}") as refusal:
        TextSpaces(GymnasiumConfig.model_validate(chosen), observations, actions)
    assert len(str(refusal.value).splitlines()) == 1


@pytest.mark.parametrize("names", [(), ("on", " ON"), ("on", "on")])
def test_names_of_actions_differ(names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="must be different names"):
        config(actions=names)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"id": "NoSuchGame-v0"}, "NoSuchGame"),
        ({"id": "no_such_package:Game-v0"}, "No module named 'no_such_package'; install the environment"),
        ({"id": "CartPole-v1", "kwargs": {"colour": 1}}, "cannot be built: TypeError: .*colour"),
    ],
)
def test_an_environment_that_cannot_be_built_is_one_line(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"^rollout\.agent\.gymnasium\.id={values['id']}: .*{reason}") as refusal:
        build_environment(GymnasiumConfig.model_validate(values))
    assert len(str(refusal.value).splitlines()) == 1


def test_any_environment_with_names_is_played() -> None:
    lake = GymnasiumConfig(
        id="FrozenLake-v1",
        kwargs={"is_slippery": False},
        observation=tuple(f"tile {number}" for number in range(16)),
        actions=("left", "down", "right", "up"),
    )
    env, _ = walk(lake, ["down", "down", "right", "right", "down", "right"])
    assert isinstance(env.env, gym.Env) and env.success
    assert [step.text for step in env.steps] == [f"tile {number}" for number in (0, 4, 8, 9, 10, 14, 15)]
