"""The batch of EnvPool's environments, with a stand-in for EnvPool: a pool that takes its seed when it is made."""

import sys
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from point_masses import MOVED, OBSERVED, Array, PointMasses

import envs  # noqa: F401 registers the environment
from embodyflow.config.composition.compose import compose_config
from embodyflow.errors import ConfigError

ACTIONS = np.random.default_rng(0).uniform(-1, 1, (15, 3, 1)).astype(np.float32)


class Pool(PointMasses):
    """A pool whose resets ignore seeds, and whose spaces are those of a lane."""

    made = 0

    def __init__(self, task_id: str, num_envs: int, max_episode_steps: int, seed: int, **kwargs: Any) -> None:
        assert task_id == "Points-v0"
        super().__init__(num_envs, max_episode_steps, "NextStep", **kwargs)
        self.observation_space, self.action_space = OBSERVED, MOVED
        super().reset(seed=seed)
        type(self).made += 1

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        return super().reset(seed=None)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> type[Pool]:
    monkeypatch.setitem(sys.modules, "envpool", SimpleNamespace(make_gymnasium=Pool))  # type: ignore[arg-type]
    return Pool


def batch() -> gym.vector.VectorEnv[Any, Any, Any]:
    return gym.make_vec("embodyflow/EnvPool-v0", 3, task_id="Points-v0", max_episode_steps=6)


def play(env: gym.vector.VectorEnv[Any, Any, Any], seed: int | None) -> list[bytes]:
    return [env.reset(seed=seed)[0].tobytes(), *(env.step(actions)[0].tobytes() for actions in ACTIONS)]


def test_a_reset_with_a_seed_restores_the_pool(pool: type[Pool]) -> None:
    env = batch()
    once, other, again, later = play(env, 5), play(env, 6), play(env, 5), play(env, None)
    assert once == again and once != other and later != once
    made = pool.made
    env.reset()
    assert pool.made == made, "a reset without a seed goes on with the pool"
    env.close()


def test_a_pool_trains_with_automatic_resets_only(pool: type[Pool]) -> None:
    words = ["experiment=half_cheetah", "env=env_pool", "env.kwargs.task_id=Points-v0", "env.max_steps=6"]
    sizes = ["policy.state_dim=null", "policy.action_dim=null"]
    assert compose_config([*words, *sizes]).policy.state_dim == 2  # type: ignore[attr-defined]
    with pytest.raises(ConfigError) as caught:
        compose_config([*words, *sizes, "env.vector.resets=seeded"])
    assert "EnvPool knows neither options nor seeds by lane; allowed is env.vector.resets=automatic" in str(
        caught.value
    )


def test_a_missing_package_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(ConfigError) as caught:
        compose_config(["experiment=half_cheetah", "env=env_pool"])
    assert "envpool is not installed, run `pip install embodyflow[envpool]`" in str(caught.value)
    assert "\n" not in str(caught.value)
