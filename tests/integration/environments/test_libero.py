"""Tests that compare LIBERO's tasks with robosuite's and LIBERO's code, and train a policy from images."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest
from small_runs import Runs
from waiting import finish

from embodyflow.simulation.rendering import rendering_problem
from embodyflow.simulation.vector.env import VectorEnv

ROOT = Path(__file__).resolve().parents[3]
ID = "envs:embodyflow/LIBERO-v0"
FORTY = [f"libero_{suite}/{number}" for suite in ("spatial", "object", "goal", "10") for number in range(10)]

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("libero_assets")]


def make(task: str = "libero_object/0", **arguments: Any) -> Any:
    return gym.make(ID, task=task, **arguments).unwrapped


def play(env: Any, goal: int, num_steps: int = 15) -> np.ndarray:
    """Return the states of the reset and after each random action."""
    rng = np.random.default_rng(1)
    states = [env.reset(options={"goal": goal})[0]["state"]]
    for _ in range(num_steps):
        states.append(env.step(rng.uniform(-1, 1, env.action_space.shape).astype(np.float32))[0]["state"])
    return np.stack(states)


def test_goal_and_actions_determine_an_episode() -> None:
    one, other = make(), make()
    first = play(one, 3)
    play(other, 4)
    np.testing.assert_array_equal(play(one, 3), first)  # from the cached settled state
    np.testing.assert_array_equal(play(other, 3), first)
    assert (play(one, 4)[0] != first[0]).any() and (play(make(split="eval"), 3)[0] != first[0]).any()


def test_environments_of_a_task_share_a_scene_but_not_its_state() -> None:
    one, other = make(), make()
    alone = play(make(), 5)
    rng, states = np.random.default_rng(1), [one.reset(options={"goal": 5})[0]["state"]]
    other.reset(options={"goal": 6})
    for _ in range(15):
        states.append(one.step(rng.uniform(-1, 1, 7).astype(np.float32))[0]["state"])
        other.step(np.ones(7, np.float32))
    np.testing.assert_array_equal(np.stack(states), alone)
    assert one._scene is other._scene


def step_by_robosuite(env: Any, actions: np.ndarray, goal: int) -> tuple[np.ndarray, list[bool]]:
    """Execute actions by robosuite's step in separate data; return positions and successes."""
    own, stock = env._scene.new_data(), env._scene._env
    env._scene.use(own)
    stock.sim.reset()
    stock.sim.set_state_from_flattened(env._initial_states[goal])
    stock.sim.forward()
    robot = stock.robots[0]
    robot.gripper.current_action = np.zeros(robot.gripper.dof)
    robot.controller.update(force=True)
    robot.controller.reset_goal()
    positions, successes = [], []
    for action in actions:
        stock.step(np.float64(action))
        positions.append(own._data.qpos.copy())
        successes.append(stock._check_success())
    return np.stack(positions), successes


def compare_with_robosuite(task: str, num_steps: int) -> None:
    env = make(task, num_settle_steps=0)
    actions = np.random.default_rng(0).uniform(-1, 1, (num_steps, 7)).astype(np.float32)
    actions[::3, 3:6] = 0  # without a turn the controller keeps its goal
    expected, expected_success = step_by_robosuite(env, actions, goal=2)
    env.reset(options={"goal": 2})
    for action, position, success in zip(actions, expected, expected_success, strict=True):
        _, reward, terminated, _, _ = env.step(action)
        np.testing.assert_array_equal(env._data.qpos, position)
        assert terminated == success == bool(reward)


def test_steps_are_bit_identical_to_robosuites() -> None:
    compare_with_robosuite("libero_object/0", 20)


@pytest.mark.slow
@pytest.mark.parametrize("task", FORTY)
def test_every_task_resets_to_recorded_states_and_steps(task: str) -> None:
    compare_with_robosuite(task, 5)
    env = make(task)
    starts = [env.reset(options={"goal": goal})[0]["state"] for goal in range(3)]
    assert all(np.isfinite(start).all() for start in starts) and len({start.tobytes() for start in starts}) == 3
    assert not env.step(np.zeros(7, np.float32))[2] and len(env.instruction.split()) > 3
    importlib.import_module(
        "embodyflow.environments.libero.scene"
    ).scene.cache_clear()  # forty scenes do not fit into memory


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 2, 4, 6, 7, 8, 9])
def test_the_expert_brings_the_object_to_the_basket(number: int) -> None:
    env = make(f"libero_object/{number}", split="demo", rotation=False)
    successes = 0
    for goal in range(5):
        env.reset(options={"goal": goal})
        over = False
        while not over:
            _, _, success, truncated, _ = env.step(env.expert_action())
            over = success or truncated
        successes += success
    assert successes >= 4


def test_the_experts_success_terminates_an_episode() -> None:
    env = make(split="demo", rotation=False)
    observation, info = env.reset(options={"goal": 0})
    assert observation["state"].shape == (31,) and not info["success"]
    np.testing.assert_allclose(observation["state"][28:31], observation["state"][10:13] - observation["state"][4:7])
    terminated, rewards = False, []
    while not terminated and len(rewards) < 200:
        observation, reward, terminated, truncated, info = env.step(env.expert_action())
        rewards.append(reward)
    assert terminated and not truncated and info["success"]
    assert rewards[-1] == 1.0 and not any(rewards[:-1]) and len(rewards) > 60


def test_episodes_truncate_and_proprio_has_eight_numbers() -> None:
    env = make(max_steps=3, observe="proprio", num_settle_steps=0)
    assert env.reset(seed=0)[0]["state"].shape == (8,)
    assert [env.step(np.zeros(7, np.float32))[2:4] for _ in range(3)] == [(False, False)] * 2 + [(False, True)]


def test_a_chunk_renders_only_its_last_observation(monkeypatch: pytest.MonkeyPatch) -> None:
    if (problem := rendering_problem()) is not None:
        pytest.skip(problem)
    cameras = {"cameras": ("image", "wrist_image"), "image_size": 32}
    single = make(**cameras)
    single.reset(options={"goal": 1})
    for _ in range(3):
        expected, *_ = single.step(np.full(7, 0.3, np.float32))
    drawn = []
    with VectorEnv([lambda: make(**cameras)], chunk_size=3, info_keys=("success",)) as vector:
        start = vector.reset(options=[{"goal": 1}])
        draw = type(single._scene).draw
        monkeypatch.setattr(type(single._scene), "draw", lambda *words: drawn.append(words[2]) or draw(*words))
        step = vector.step(np.full((1, 3, 7), 0.3, np.float32))
    assert drawn == ["agentview", "robot0_eye_in_hand"]
    for name in ("state", "image", "wrist_image"):
        np.testing.assert_array_equal(step.observation[name][0], expected[name])
        assert (start[name][0] != expected[name]).any()


@pytest.mark.parametrize("task", ["libero_spatial/3", "libero_object/0", "libero_goal/3", "libero_10/3"])
def test_hiding_unseen_geoms_changes_no_pixel(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    env = make(task=task, cameras=("image", "wrist_image"))
    env.reset(options={"goal": 2})
    for action in np.random.default_rng(0).uniform(-1, 1, (4, 7)).astype(np.float32):
        seen, *_ = env.step(action)
        with monkeypatch.context() as patch:
            patch.setattr(
                "embodyflow.environments.libero.scene.seen_geoms", lambda model, *_: np.ones(model.ngeom, bool)
            )
            everything = env.observe()
        for name in ("image", "wrist_image"):
            np.testing.assert_array_equal(seen[name], everything[name])


def test_states_need_no_gl() -> None:
    script = f"import gymnasium, sys; e = gymnasium.make({ID!r}); e.reset(); print('OpenGL' in sys.modules)"
    environment = {**os.environ, "MUJOCO_GL": "disabled", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": "libero_object/10"}, "task='libero_object/10': must be one of libero_spatial/0"),
        ({"cameras": ["front"]}, "cameras='front': must be one of image, wrist_image"),
        ({"controller_period": 2}, "controller_period=2: must be one of 1, 5, 25"),
        ({"observe": "all"}, "observe='all': must be one of objects, proprio"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("[", r"\[")):
        make(**arguments)


def test_missing_assets_are_one_line(tmp_path: Path) -> None:
    script = f"import gymnasium; gymnasium.make({ID!r})"
    environment = {**os.environ, "LIBERO_ASSETS": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert f"FileNotFoundError: LIBERO_ASSETS={tmp_path}: {tmp_path} has no articulated_objects" in last


def test_an_episode_continues_after_its_process_was_killed() -> None:
    before = set(psutil.Process().children())
    chunks = np.random.default_rng(0).uniform(-1, 1, (4, 2, 3, 7)).astype(np.float32)
    trajectories = []
    with VectorEnv([make] * 2, chunk_size=3, num_workers=1, info_keys=("success",)) as vector:
        for killed_at in (None, 2):
            seen = [vector.reset(seeds=[3, 4], options=[{"goal": 3}, {"goal": 4}])["state"]]
            for t, chunk in enumerate(chunks):
                if t == killed_at:
                    [process] = set(psutil.Process().children()) - before
                    process.kill()
                step = vector.step(chunk)
                seen += [step.observation["state"], step.rewards]
            trajectories.append([array.tobytes() for array in seen])
        assert vector.supervision.restarts == 1
    assert trajectories[0] == trajectories[1]


@pytest.mark.slow
def test_a_policy_trains_from_images(tmp_path: Path, prefect_api: str, ray_env: dict[str, str]) -> None:
    if (problem := rendering_problem()) is not None:
        pytest.skip(problem)
    runs = Runs(tmp_path).served_by(prefect_api, **ray_env)
    words = ["experiment=libero", "iterations=1", f"run_root={runs.root}", "run_id=seen"]
    words += ["env.tasks=[libero_object/0]", "env.max_steps=120", "policy.cameras=[image,wrist_image]"]
    words += ["+env.kwargs.cameras=[image,wrist_image]", "+env.kwargs.image_size=32", "policy.image_size=32"]
    words += ["rollout.num_workers=1", "rollout.envs_per_worker=2", "rollout.num_groups=1", "rollout.group_size=2"]
    words += ["warm_start.num_demos=1", "warm_start.steps=10", "policy.hidden_size=64", "filter.drop_uniform=false"]
    words += ["evaluation.num_goals=1", "evaluation.video=false"]
    process = runs.start(*words)
    output = finish(process)
    assert process.returncode == 0, output[-4000:]
    [record] = [each for each in runs.metrics("seen") if "train/grad_norm" in each]
    assert record["rollout/num_episodes"] == record["groups/num_kept_rows"] == 2
    assert record["parity/log_prob_gap"] <= 1e-4
    policy = json.loads((runs.root / "seen" / "policy" / "config.json").read_text())
    assert policy["cameras"] == ["image", "wrist_image"] and policy["image_size"] == 32
