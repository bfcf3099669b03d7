import dataclasses
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Text, Tuple

from embodyflow.config.robots.environment import AdapterConfig, EnvConfig
from embodyflow.environments.adapter import FIRST_SEED, Adaptation, AdaptedEnv
from embodyflow.simulation.make_env import first_task, make_env
from embodyflow.simulation.rendering import rendering_problem

REACHER_XML = str(Path(gym.__file__).parent / "envs" / "mujoco" / "assets" / "reacher.xml")


class Corridor(gym.Env):
    """A point on a line that ignores its seed: x starts in [0, 1), and actions in [0, 4] move it by action / 100."""

    def __init__(self, informative: bool = True, render_mode: str | None = None) -> None:
        self.observation_space = Dict(
            {"deep": Dict({"x": Box(-9, 9, (1,), np.float64)}), "camera": Box(0, 255, (8, 8, 3), np.uint8)}
        )
        self.action_space = Box(0.0, 4.0, (1,), np.float32)
        self.informative, self.render_mode = informative, render_mode

    def reset(self, *, seed=None, options=None):
        self.seen_options = options
        return self._start(), {}

    def _start(self) -> dict[str, Any]:
        self.x = self.np_random.random()
        return self._observation()

    def step(self, action):
        self.x += float(action[0]) / 100
        info = {"arrived": self.x > 2} if self.informative else {}
        return self._observation(), self.x, self.x > 2, False, info

    def _observation(self) -> dict[str, Any]:
        return {"deep": {"x": np.array([self.x])}, "camera": np.full((8, 8, 3), 9, np.uint8)}


def faster(env: gym.Env) -> gym.Env:
    return gym.wrappers.TransformReward(env, lambda reward: reward + 10)


def paired(env: gym.Env) -> gym.Env:
    env = gym.Wrapper(env)
    env.observation_space = Tuple((env.observation_space, Discrete(2)))
    return env


def nothing_left(env: gym.Env) -> None:
    """Return nothing in place of the environment."""


def broken(env: gym.Env) -> gym.Env:
    return {}["arm"]


def one_for_two(env: gym.Env, observation: dict[str, Any]) -> list[float]:
    return [1.0, 1.0]


def full_speed(env: gym.Env, observation: dict[str, Any]) -> list[float]:
    return [4.0]


gym.register("tests/Corridor-v0", Corridor)


def corridor(split: str = "train", kwargs: dict[str, Any] | None = None, **adaptation: Any) -> AdaptedEnv:
    chosen = {"success_info": "arrived", **adaptation}
    return AdaptedEnv("tests/Corridor-v0", "go", split, 60, kwargs=kwargs, adaptation=chosen)


def test_its_settings_are_the_configurations() -> None:
    fields = {field.name for field in dataclasses.fields(Adaptation)}
    assert fields == set(AdapterConfig().adaptation("go"))
    assert Adaptation(**AdapterConfig().adaptation("go")) == Adaptation()


def test_initial_states_are_numbered_and_splits_disjoint() -> None:
    env = corridor()
    starts = {goal: env.reset(options={"goal": goal})[0]["state"][0] for goal in (0, 1, 2)}
    env.step(np.ones(1))
    assert env.reset(seed=3, options={"goal": 1})[0]["state"][0] == starts[1]
    assert len(set(starts.values())) == 3
    expected = np.float32(np.random.default_rng(1).random())  # the start of an environment that uses seed 1
    assert starts[1] == expected
    ranges = [range(FIRST_SEED[split], FIRST_SEED[split] + number) for split, number in env.num_goals.items()]
    assert sum(map(len, ranges)) == len(set().union(*ranges))
    with pytest.raises(ValueError, match="goal=1024: split 'demo' has goals 0 to 1023"):
        corridor(split="demo").reset(options={"goal": 1024})


def test_a_seed_draws_the_goal() -> None:
    env = corridor()
    goals = [env.reset(seed=seed)[1]["goal"] for seed in (1, 2, 1)]
    assert goals[0] == goals[2] != goals[1]


def test_actions_are_scaled_and_success_terminates() -> None:
    env = corridor()
    observation, info = env.reset(options={"goal": 0})
    assert (info["success"], info["instruction"]) == (False, "go")
    start = observation["state"][0]
    observation, *_ = env.step(np.array([0.0], np.float32))  # the middle of [0, 4]
    assert observation["state"][0] - start == pytest.approx(0.02, abs=1e-6)
    for _ in range(60):
        _, _, terminated, truncated, info = env.step(np.array([1.0], np.float32))
        if terminated or truncated:
            break
    assert info["success"] and terminated and not truncated


@pytest.mark.parametrize(
    ("arguments", "succeeds"),
    [
        ({"success_info": "arrived"}, True),
        ({"success_info": None, "success_termination": True}, True),
        ({"success_info": None, "success_reward": 1.5}, True),
        ({"success_info": None, "success_reward": 2.5}, False),
        ({"success_info": None}, False),
        ({"success_info": None, "success_reward": 11.5, "wrappers": [f"{__name__}:faster"]}, True),
    ],
)
def test_success_follows_the_configuration(arguments: dict[str, Any], succeeds: bool) -> None:
    env = corridor(**arguments)
    env.reset(options={"goal": 0})
    for _ in range(60):
        _, _, terminated, truncated, info = env.step(np.array([1.0], np.float32))
        if terminated or truncated:
            break
    assert info["success"] is succeeds and terminated


def test_episodes_truncate_at_max_steps() -> None:
    env = corridor()
    env.reset(options={"goal": 0})
    ends = [env.step(np.array([-1.0], np.float32))[2:4] for _ in range(60)]
    assert ends == [(False, False)] * 59 + [(False, True)]


def test_images_are_resized_and_not_part_of_the_state() -> None:
    env = corridor(images={"image": "camera"}, image_size=4)
    observation, _ = env.reset(seed=0)
    assert {key: value.shape for key, value in observation.items()} == {"state": (1,), "image": (4, 4, 3)}
    assert (observation["image"] == 9).all()
    assert env.observation_space.contains(observation)
    chosen = corridor(state=["deep.x"]).reset(seed=0)[0]
    assert chosen["state"].shape == (1,)


@pytest.mark.parametrize(
    ("declared", "picture", "message"),
    [
        (Box(0.0, 1.0, (8, 8, 3), np.float32), np.ones((8, 8, 3), np.float32), r"is float32 \(8, 8, 3\)"),
        (Box(0, 255, (8, 8), np.uint8), np.ones((8, 8), np.uint8), r"is uint8 \(8, 8\)"),
        (Box(0, 255, (8, 8, 4), np.uint8), np.ones((8, 8, 4), np.uint8), r"is uint8 \(8, 8, 4\)"),
        (Box(0, 255, (8, 8, 3), np.uint8), np.ones((8, 8, 3)), r"is float64 \(8, 8, 3\)"),  # differs from its space
    ],
)
@pytest.mark.parametrize("source", ["camera", "render"])
def test_an_image_that_is_not_uint8_in_three_colours_is_an_error(
    declared: Box, picture: np.ndarray, message: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Camera(gym.ObservationWrapper):
        def __init__(self, env: gym.Env) -> None:
            super().__init__(env)
            self.observation_space = Dict({**env.observation_space.spaces, "camera": declared})

        def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
            return {**observation, "camera": picture}

        def render(self) -> np.ndarray:
            return picture

    monkeypatch.setattr(f"{__name__}.faster", Camera)
    monkeypatch.setattr(Corridor, "metadata", {"render_modes": ["rgb_array"]})
    with pytest.raises(ValueError, match=rf"^images.image={source}: must be uint8 \[H, W, 3\], {message}; wrappers"):
        corridor(images={"image": source}, image_size=4, wrappers=[f"{__name__}:faster"]).reset(seed=0)


def test_the_experts_actions_are_in_the_environments_own_bounds() -> None:
    env = corridor(expert=f"{__name__}:full_speed")
    env.reset(seed=0)
    np.testing.assert_array_equal(env.expert_action(), [1.0])
    assert not hasattr(corridor(), "expert_action")


def test_an_expert_action_of_another_shape_is_not_broadcast() -> None:
    env = corridor(expert=f"{__name__}:one_for_two")
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"one_for_two: must return finite numbers \(1,\), returned \[1.0, 1.0\]"):
        env.expert_action()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"state": ["deep.y"]}, "state=deep.y: the observation has no such key; it has x"),
        ({"images": {"image": "wrist"}}, "images.image=wrist: the observation has no such key; it has camera, deep"),
        ({"wrappers": ["nowhere:f"]}, "wrappers=nowhere:f: No module named 'nowhere'"),
        ({"expert": f"{__name__}:nothing"}, "has no attribute 'nothing'; must be module:function"),
        ({"wrappers": [f"{__name__}:nothing_left"]}, ":nothing_left: must return a gymnasium.Env, returned None"),
        ({"wrappers": [f"{__name__}:broken"]}, f"wrappers={__name__}:broken: KeyError: 'arm'"),
        ({"split": "test"}, "split='test': must be one of train, demo, eval"),
        ({"state": []}, "nothing is left to observe"),
        ({"wrappers": [f"{__name__}:paired"]}, "its observation must be made of arrays, has Tuple(Dict('camera': "),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, ImportError)) as caught:
        corridor(**arguments)
    assert message in str(caught.value)


def test_info_without_the_key_of_success_is_an_error() -> None:
    env = corridor(kwargs={"informative": False})
    env.reset(seed=0)
    message = "success_info='arrived': info has no such key; it has none; success_absent=not_yet allows that"
    with pytest.raises(ValueError, match=message):
        env.step(np.zeros(1, np.float32))


def informed(monkeypatch: pytest.MonkeyPatch, info: dict[str, Any], **adaptation: Any) -> AdaptedEnv:
    """Return a corridor whose steps have this info."""
    step = Corridor.step
    monkeypatch.setattr(Corridor, "step", lambda self, action: (*step(self, action)[:4], info))
    env = corridor(**adaptation)
    env.reset(seed=0)
    return env


NOT_NUMBERS = [
    None,
    np.nan,
    np.inf,
    "True",
    "1",
    "yes",
    [True, False],
    {"done": True},
    np.array(["1"]),
    object(),
    np.eye(40),
]


@pytest.mark.parametrize("absent", ["refuse", "not_yet"])
@pytest.mark.parametrize("value", NOT_NUMBERS, ids=map(str, range(len(NOT_NUMBERS))))
def test_a_success_that_is_no_number_is_an_error(value: Any, absent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    env = informed(monkeypatch, {"arrived": value}, success_absent=absent)
    with pytest.raises(
        ValueError, match=r"^success_info='arrived': must be true or false, or a number, .* is "
    ) as caught:
        env.step(np.zeros(1, np.float32))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [0.3, np.float32(0.999), np.array([1e-9])])
def test_a_share_of_the_goal_is_no_success(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    env = informed(monkeypatch, {"arrived": value})
    with pytest.raises(
        ValueError, match=r"^success_info='arrived': is .*, and a share of the goal is no success; a wra"
    ):
        env.step(np.zeros(1, np.float32))


def test_a_negative_success_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    env = informed(monkeypatch, {"arrived": -1})
    with pytest.raises(ValueError, match=r"^success_info='arrived': is -1; allowed are true, false, 0 and "):
        env.step(np.zeros(1, np.float32))


@pytest.mark.parametrize(
    ("value", "succeeds"),
    [(True, True), (1, True), (0.0, False), (np.bool_(True), True), (np.float32(2), True), (np.array([1]), True)],
)
def test_a_success_may_be_any_number(value: Any, succeeds: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    env = informed(monkeypatch, {"arrived": value})
    assert env.step(np.zeros(1, np.float32))[4]["success"] is succeeds


@pytest.mark.parametrize(
    ("key", "info", "succeeds"),
    [
        ("metrics.success", {"metrics": {"success": True}}, True),
        ("metrics.success", {"metrics": {"success": 0}, "success": True}, False),
        ("metrics.success", {"metrics.success": True, "metrics": {"success": False}}, True),
        ("a.b.c", {"a.b": {"c": True}, "a": {"b": {}}}, True),
        (r"episode.is_success", {"episode": {3: True, "is_success": True}}, True),
    ],
)
def test_the_key_of_success_may_be_nested(
    key: str, info: dict[str, Any], succeeds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = informed(monkeypatch, info, success_info=key)
    assert env.step(np.zeros(1, np.float32))[4]["success"] is succeeds


@pytest.mark.parametrize("info", [{}, {"metrics": {}}, {"metrics": 3}, {"metrics": None}, {"other": True}])
def test_a_key_of_success_that_is_absent_is_refused_or_no_success_yet(
    info: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"^success_info='metrics.success': info has no such key; it has "):
        informed(monkeypatch, info, success_info="metrics.success").step(np.zeros(1, np.float32))
    env = informed(monkeypatch, info, success_info="metrics.success", success_absent="not_yet")
    assert env.step(np.zeros(1, np.float32))[4]["success"] is False


def test_success_absent_needs_success_info() -> None:
    with pytest.raises(ValueError, match="success_absent=not_yet: needs success_info"):
        AdapterConfig(success_reward=1.0, success_absent="not_yet")
    assert AdapterConfig(success_info="a.b", success_absent="not_yet").success_absent == "not_yet"


def test_a_reset_tells_if_its_goal_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    for info, solved in (({"arrived": True}, True), ({"arrived": 0}, False), ({}, False)):
        monkeypatch.setattr(Corridor, "reset", lambda self, info=info, **_: (self._start(), info))
        assert corridor().reset(seed=0)[1]["success"] is solved


def test_discrete_actions_are_the_environments_own() -> None:
    env, plain = AdaptedEnv("CartPole-v1"), gym.make("CartPole-v1")
    assert env.action_space == plain.action_space == Discrete(2)
    state, _ = plain.reset(seed=3)
    assert np.array_equal(env.reset(options={"goal": 3})[0]["state"], state)
    for action in (0, 1, 1, 0):
        assert np.array_equal(env.step(np.int64(action))[0]["state"], plain.step(action)[0])


class Levers(gym.Env):
    observation_space, action_space = Box(-1, 1, (1,)), MultiDiscrete([2, 3])


def test_several_discrete_actions_at_once_are_the_environments_own() -> None:
    gym.register("tests/Levers-v0", Levers)
    assert AdaptedEnv("tests/Levers-v0").action_space == MultiDiscrete([2, 3])


def test_a_text_among_the_observations_is_refused_with_the_others_named() -> None:
    spaces = Dict(mission=Text(9), place=Box(-1, 1, (2,)), side=Discrete(4))
    gym.register("tests/Told-v0", type("Told", (Levers,), {"observation_space": spaces}))
    with pytest.raises(ValueError, match=r"^state=null: the observation 'mission' is Text\(.*; name others, such as "):
        AdaptedEnv("tests/Told-v0")
    with pytest.raises(ValueError, match=r"^state=mission: must be an array of numbers, is Text\("):
        AdaptedEnv("tests/Told-v0", adaptation={"state": ["mission"]})
    env = AdaptedEnv("tests/Told-v0", adaptation={"state": ["side", "place"]})
    assert env.observation_space["state"].shape == (3,)


def test_an_expert_needs_a_box_of_actions() -> None:
    with pytest.raises(ValueError, match=r"^expert=builtins:len: needs a Box of actions, not Discrete\(2\)$"):
        AdaptedEnv("CartPole-v1", adaptation={"expert": "builtins:len"})


class Dials(gym.Env):
    """An environment that observes its own actions, under keys that contain dots."""

    observation_space = Dict({"observation.state": Box(-9, 9, (2,)), "observation": Dict({"x": Box(-9, 9, (1,))})})

    def __init__(self, low: list[float], high: list[float], dtype: type = np.float32) -> None:
        self.action_space = Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype)
        self.seen = np.zeros(2)

    def reset(self, *, seed=None, options=None):
        return self._observation(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.seen = action
        return self._observation(), 0.0, False, False, {"arrived": False}

    def _observation(self) -> dict[str, Any]:
        return {"observation.state": np.float32(self.seen), "observation": {"x": np.float32(self.seen[:1])}}


gym.register("tests/Dials-v0", Dials)


def dials(kwargs: dict[str, Any], **adaptation: Any) -> AdaptedEnv:
    chosen = {"success_info": "arrived", **adaptation}
    return AdaptedEnv("tests/Dials-v0", "go", max_steps=60, kwargs=kwargs, adaptation=chosen)


def test_the_ends_of_the_scale_are_exactly_the_environments_bounds() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        low = np.round(rng.uniform(-3, 3, 2), 2)
        env = dials(kwargs={"low": low.tolist(), "high": (low + np.round(rng.uniform(0, 3, 2), 2)).tolist()})
        env.reset(seed=0)
        for end, bound in ((-1, "low"), (1, "high")):
            env.step(np.full(2, end, np.float32))
            assert np.array_equal(env.inner.unwrapped.seen, getattr(env.inner.action_space, bound))


def test_a_dimension_of_zero_width_keeps_its_value() -> None:
    env = dials(kwargs={"low": [0.0, 0.5], "high": [2.0, 0.5]}, expert=f"{__name__}:middle")
    env.reset(seed=0)
    env.step(np.zeros(2, np.float32))
    np.testing.assert_array_equal(env.inner.unwrapped.seen, [1.0, 0.5])
    assert np.isfinite(env.expert_action()).all() and env.expert_action()[0] == 0.0


def middle(env: gym.Env, observation: dict[str, Any]) -> list[float]:
    return [1.0, 0.5]


def test_integer_actions_are_refused() -> None:
    with pytest.raises(ValueError, match="its actions must be discrete or a Box of floats with finite bounds, are Box"):
        dials(kwargs={"low": [0, 0], "high": [10, 10], "dtype": np.int64})


@pytest.mark.parametrize(
    ("state", "size"), [(None, 3), (["observation.state", "observation.x"], 3), (["observation.state"], 2)]
)
def test_keys_may_contain_dots(state: list[str] | None, size: int) -> None:
    env = dials(kwargs={"low": [0.0, 0.0], "high": [1.0, 1.0]}, state=state)
    observation, _ = env.reset(seed=0)
    assert (
        observation["state"].shape
        == env.observation_space["state"].shape
        == ((2,) if state and len(state) == 1 else (3,))
    )


THIRD_PARTY: dict[str, dict[str, Any]] = {
    "fetch": {
        "id": "gymnasium_robotics:FetchReach-v4",
        "tasks": ["move the gripper to the ball"],
        "max_steps": 50,
        "adapter": {"success_info": "is_success"},
    },
    "metaworld": {
        "id": "metaworld:Meta-World/MT1",
        "tasks": ["drawer-open-v3"],
        "kwargs": {"seed": 1},
        "max_steps": 100,
        "adapter": {
            "success_info": "success",
            "instructions": {"drawer-open-v3": "open the drawer"},
            "task_kwargs": {"drawer-open-v3": {"env_name": "drawer-open-v3"}},
        },
    },
    "a plain MuJoCo XML": {
        "id": "envs:embodyflow/MuJoCo-v0",
        "tasks": ["touch the ball"],
        "kwargs": {
            "xml": REACHER_XML,
            "frame_skip": 2,
            "near": [["fingertip", "target", 0.02]],
            "spread": {"joint0": 0.3, "target_x": 0.1},
        },
        "max_steps": 50,
        "adapter": {"success_info": "success"},
    },
}


@pytest.mark.parametrize("name", THIRD_PARTY)
def test_a_third_party_environment_needs_only_a_configuration(name: str) -> None:
    if name == "fetch":
        pytest.importorskip("gymnasium_robotics")
    config = EnvConfig.model_validate(THIRD_PARTY[name])
    envs = [make_env(config, first_task(config), split) for split in ("train", "train", "eval")]
    trajectories = []
    for env in envs:
        observation, info = env.reset(options={"goal": 5})
        states = [observation["state"]]
        for action in np.random.default_rng(0).uniform(-1, 1, (10, *env.action_space.shape)):
            observation, _, _, _, info = env.step(action.astype(np.float32))
            states.append(observation["state"])
        trajectories.append(np.stack(states))
        assert info["success"] in (False, True) and " " in info["instruction"]
        assert states[0].dtype == np.float32 and env.observation_space.contains(observation)
        env.close()
    np.testing.assert_array_equal(trajectories[0], trajectories[1])
    assert (trajectories[0][0] != trajectories[2][0]).any()


def test_a_scene_succeeds_when_its_pair_is_near() -> None:
    near = [("fingertip", "target", 0.05)]
    env = gym.make("envs:embodyflow/MuJoCo-v0", xml=REACHER_XML, near=near, disable_env_checker=True).unwrapped
    env.reset(seed=0)
    data = env.data
    apart = data.body("target").xpos - data.body("fingertip").xpos
    observation, reward, terminated, _, info = env.step(np.zeros(2, np.float32))
    assert not info["success"] and not terminated
    np.testing.assert_allclose(observation[-3:], apart, atol=1e-6)
    assert reward == pytest.approx(-np.linalg.norm(apart), abs=1e-6)
    data.joint("target_x").qpos[0] += (data.body("fingertip").xpos - data.body("target").xpos)[0] - 0.03
    data.joint("target_y").qpos[0] += (data.body("fingertip").xpos - data.body("target").xpos)[1]
    assert env.step(np.zeros(2, np.float32))[4]["success"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"xml": "nowhere.xml"}, "xml=nowhere.xml: must be an existing file"),
        ({"near": [("fingertip", "goal", 0.1)]}, "near: the scene has no site or body 'goal'"),
        ({"spread": {"joint7": 1.0}}, "spread: the scene has no joint 'joint7'; it has joint0, joint1, target_x"),
        ({"frame_skip": 0}, "frame_skip=0: must be an integer number of physics steps, at least 1"),
        ({"frame_skip": 2.5}, "frame_skip=2.5: must be an integer number"),
        ({"near": ["fingertip", "target", 0.1]}, r"near: 'fingertip' must be \[body or site, body or site, tolerance"),
        ({"near": [("fingertip", "target")]}, r"near: \('fingertip', 'target'\) must be"),
        ({"spread": {"joint0": "wide"}}, "spread: joint0='wide' must be a number"),
    ],
)
def test_wrong_arguments_of_a_scene_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gym.make("envs:embodyflow/MuJoCo-v0", **{"xml": REACHER_XML, **arguments})


def test_rendered_images_are_part_of_the_observation() -> None:
    if (problem := rendering_problem()) is not None:
        pytest.skip(problem)
    picture: dict[str, Any] = {"images": {"image": "render"}, "image_size": 32}
    envs = [AdaptedEnv("envs:embodyflow/MuJoCo-v0", "look", kwargs={"xml": REACHER_XML}, adaptation=picture)]
    alone = envs[0].reset(seed=0)[0]["image"]
    assert alone.shape == (32, 32, 3) and alone.std() > 5
    envs += [AdaptedEnv(name, "look", adaptation=picture) for name in ("HalfCheetah-v5", "Reacher-v5", "Hopper-v5")]
    once = [env.reset(seed=0)[0]["image"] for env in envs]
    again = [env.reset(seed=0)[0]["image"] for env in envs]  # each uses its own context, not the last one
    np.testing.assert_array_equal(once, again)
    np.testing.assert_array_equal(once[0], alone)
    for env in envs:
        env.close()


def test_reset_options_are_the_environments_and_the_goal_is_the_runs() -> None:
    values = {"id": "tests/Corridor-v0", "tasks": ["go"], "max_steps": 60, "adapter": {"success_info": "arrived"}}
    options = {"low": -0.1, "cells": [1, {"deep": 2}]}
    env = make_env(EnvConfig.model_validate(values | {"reset_options": options}), "go", "eval")
    inner = env.unwrapped.inner.unwrapped
    start = env.reset(seed=3, options={"goal": 3})[0]["state"]
    assert inner.seen_options == options
    inner.seen_options["cells"][1]["deep"] = 9  # an environment may change its options
    env.reset(seed=4, options={"goal": 4})
    assert inner.seen_options == options
    np.testing.assert_array_equal(env.reset(options={"goal": 3})[0]["state"], start)
    plain = make_env(EnvConfig.model_validate(values), "go", "eval")
    plain.reset(options={"goal": 3})
    assert plain.unwrapped.inner.unwrapped.seen_options is None


@pytest.mark.parametrize("tasks", [["go"], []])
def test_the_goal_is_no_reset_option(tasks: list[str]) -> None:
    values = {"id": "tests/Corridor-v0", "tasks": tasks, "max_steps": 60, "adapter": {"success_info": "arrived"}}
    with pytest.raises(ValueError, match=r"reset_options\.goal: the run chooses it"):
        EnvConfig.model_validate(values | {"reset_options": {"goal": 3}})
