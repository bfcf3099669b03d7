"""Environments of MuJoCo give back the memory that building their models has taken."""

import subprocess
import sys

import gymnasium as gym
import mujoco
import numpy as np

from embodyflow.environments.build_memory import free_build_memory

ANONYMOUS_MEMORY = """
import gymnasium as gym

def anonymous():
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))

env = gym.make("envs:embodyflow/MetaWorld-v0", task="push-v3")
built = anonymous()
env.reset(seed=0)
print(built - anonymous())
"""


def cached_bytes() -> int:
    return int(mujoco.mj_getCacheSize(mujoco.mj_getCache()))


def play(env: gym.Env[dict[str, np.ndarray], np.ndarray]) -> np.ndarray:
    first, _ = env.reset(seed=3, options={"goal": 1})
    steps = [env.step(np.full(4, 0.5, np.float32))[0]["state"] for _ in range(5)]
    return np.stack([first["state"], *steps])


def test_the_first_reset_empties_the_cache_of_meshes_and_changes_no_episode() -> None:
    env = gym.make("envs:embodyflow/MetaWorld-v0", task="push-v3")
    assert cached_bytes() > 10**6
    first = play(env)
    assert cached_bytes() == 0
    np.testing.assert_array_equal(play(env), first)
    later = gym.make("envs:embodyflow/MetaWorld-v0", task="push-v3")  # decodes its meshes again
    np.testing.assert_array_equal(play(later), first)
    free_build_memory()  # nothing is left to free


def test_the_memory_returns_to_the_system() -> None:
    freed = subprocess.run([sys.executable, "-c", ANONYMOUS_MEMORY], check=True, capture_output=True, text=True)
    assert int(freed.stdout.splitlines()[-1]) > 20_000  # kB
