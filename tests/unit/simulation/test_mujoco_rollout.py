"""Tests that MuJoCo tasks step bit-identically to Gymnasium by rollout, and that only known tasks do so."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv

from embodyflow.simulation.mujoco_rollout import MujocoRollout
from embodyflow.simulation.vector.env import EnvError, VectorEnv

TASKS = {
    "HalfCheetah-v5": {"ctrl_cost_weight": 0.3},
    "Hopper-v5": {},
    "Reacher-v5": {"reward_dist_weight": 2},
    "Swimmer-v5": {"exclude_current_positions_from_observation": False},
    "Walker2d-v5": {"healthy_z_range": (1.0, 1.4)},
}


def build(env_id, **kwargs):
    return gym.make(env_id, max_episode_steps=33, **kwargs)


def step_chunk(env, actions):
    """Step Gymnasium's environment up to its end; return the last step's tuple, the rewards and the infos."""
    played = []
    for action in actions:
        played.append(env.step(action))
        if played[-1][2] or played[-1][3]:
            break
    return played[-1], [np.float32(reward) for _, reward, *_ in played], [info for *_, info in played]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("chunk_size", [1, 4])
@pytest.mark.parametrize("env_id", TASKS)
def test_steps_are_bit_identical_to_gymnasiums(env_id, chunk_size):
    references = [build(env_id, **TASKS[env_id]) for _ in range(3)]
    observations = np.stack([env.reset(seed=i)[0] for i, env in enumerate(references)])
    keys = list(references[0].step(references[0].action_space.sample())[4])
    references[0].reset(seed=0)
    actions = np.random.default_rng(0).uniform(
        -1, 1, (60 // chunk_size, 3, chunk_size, *references[0].action_space.shape)
    )
    ends = 0
    with VectorEnv([lambda: build(env_id, **TASKS[env_id])] * 3, chunk_size=chunk_size, info_keys=keys) as env:
        assert isinstance(env._shards[0]._shard._group._rollout, MujocoRollout)
        assert np.array_equal(env.reset(seeds=range(3))["state"], observations)
        for chunk in actions.astype(np.float32):
            step = env.step(chunk)
            for i, reference in enumerate(references):
                (observation, _, terminated, truncated, _), rewards, infos = step_chunk(reference, chunk[i])
                padding = [0.0] * (chunk_size - len(rewards))
                assert np.array_equal(step.observation["state"][i], observation)
                assert step.rewards[i].tolist() == rewards + padding
                assert (step.terminated[i], step.truncated[i]) == (terminated, truncated)
                for key in keys:
                    assert step.infos[key][i].tolist() == [float(info[key]) for info in infos] + padding
                if terminated or truncated:
                    ends += 1
                    assert np.array_equal(env.reset([i])["state"][0], reference.reset()[0])
    assert ends >= 3


def test_a_subset_in_any_order():
    with VectorEnv([lambda: build("HalfCheetah-v5")] * 3, chunk_size=2) as env:
        actions = np.random.default_rng(1).uniform(-1, 1, (3, 2, 6))
        env.reset(seeds=range(3))
        expected = env.step(actions).observation["state"]
        env.reset(seeds=range(3))
        assert np.array_equal(env.step(actions[[2, 0]], [2, 0]).observation["state"], expected[[2, 0]])
        assert np.array_equal(env.step(actions[[1]], [1]).observation["state"], expected[[1]])


@pytest.mark.filterwarnings("ignore")
def test_diverging_physics_continue_as_in_gymnasium(capfd, tmp_path, monkeypatch):
    """Check that a diverging simulation is reset and continues, although MuJoCo's rollout would stop."""
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings to a file in the current folder
    reference, ours = build("HalfCheetah-v5"), build("HalfCheetah-v5")
    stepper = MujocoRollout.for_envs({0: ours})
    for env in (reference, ours):
        env.reset(seed=0)
        env.unwrapped.data.qvel[0] = 1e12
    stepper.load_states([0])
    actions = np.full((1, 3, 6), 0.5, np.float32)
    outcome, _ = stepper.step([0], actions)
    expected = [reference.step(action) for action in actions[0]]
    assert outcome.observation[0].tolist() == [observation.tolist() for observation, *_ in expected]
    assert outcome.reward[0].tolist() == [reward for _, reward, *_ in expected]


class Downhill(HalfCheetahEnv):
    """A subclass, which may step differently."""


@pytest.mark.parametrize(
    "envs",
    [
        [lambda: gym.make("Ant-v5")],
        [Downhill],
        [lambda: gym.wrappers.RescaleAction(gym.make("HalfCheetah-v5"), np.float32(-2), np.float32(2))],
        [HalfCheetahEnv, lambda: HalfCheetahEnv(ctrl_cost_weight=0.2)],
        [lambda: gym.make("HalfCheetah-v5"), lambda: gym.make("Walker2d-v5")],
    ],
    ids=["unknown task", "subclass", "wrapper", "arguments", "mixed"],
)
def test_unknown_environments_keep_their_own_step(envs):
    assert MujocoRollout.for_envs({i: build() for i, build in enumerate(envs)}) is None


def test_a_missing_info_key_is_an_error():
    with VectorEnv([HalfCheetahEnv], chunk_size=1, info_keys=["success"]) as env:
        env.reset()
        with pytest.raises(EnvError, match=r"no 'success', it has .*'reward_ctrl'"):
            env.step(np.zeros((1, 1, 6)))
