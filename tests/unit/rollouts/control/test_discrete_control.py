"""Control rollouts with a Discrete action space, against plain Gymnasium loops."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.spaces import Box, Discrete
from trainers import new_trainer

import tasks
from embodyflow.config import RunConfig
from embodyflow.config.composition.compose import compose_config
from embodyflow.data.batches import to_batch
from embodyflow.data.tables import digest_of
from embodyflow.rollouts.control_rollout import ControlRollout
from embodyflow.rollouts.embodied.executable_actions import executable_actions
from embodyflow.seeding import LARGEST_ENV_SEED, derive_seed


class Shifted(CartPoleEnv):
    """CartPole with the actions -1 and 0."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.action_space = Discrete(2, start=-1)

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.action_space = Discrete(2)
        try:
            return super().step(action + 1)
        finally:
            self.action_space = Discrete(2, start=-1)


gym.register("tests/ShiftedCartPole-v0", Shifted)
SHIFTED = f"{__name__}:tests/ShiftedCartPole-v0"
SIZES = ("policy.state_dim=null", "policy.action_dim=null")
WORDS = (
    *("experiment=reacher", "algorithm=ppo", "env.max_steps=20", *SIZES),
    *("rollout.num_workers=1", "rollout.envs_per_worker=2", "rollout.num_steps=50"),
)


@pytest.fixture(params=["CartPole-v1", SHIFTED])
def config(request: pytest.FixtureRequest) -> RunConfig:
    return compose_config([*WORDS, f"env.id={request.param}"])


@pytest.fixture
def start() -> Iterator[Callable[[RunConfig], ControlRollout]]:
    """Return a function that builds engines, which are closed at the end."""
    engines: list[ControlRollout] = []

    def started(config: Any) -> ControlRollout:
        torch.manual_seed(0)
        engines.append(ControlRollout(config, 0, 1))
        return engines[-1]

    yield started
    for engine in engines:
        engine.close()


def test_rows_match_gymnasium(config: RunConfig, start: Callable[[RunConfig], ControlRollout]) -> None:
    rows, finished = start(config).collect(1, (0, 1, "rollout"))
    assert rows["action_tokens"].dtype == np.int64 and set(np.unique(rows["action_tokens"])) == {0, 1}
    assert rows["terminated"].any()
    env, episode = gym.make("CartPole-v1", max_episode_steps=20), 0
    first_uid = int(rows["uid"].min())
    pieces = sorted(np.flatnonzero(rows["uid"] < first_uid + 50), key=lambda row: rows["uid"][row])
    for row in pieces:
        state, _ = env.reset(seed=derive_seed(0, "episode", 0, episode) % (LARGEST_ENV_SEED + 1))
        episode, length = episode + 1, rows["num_steps"][row]
        for t in range(length):
            assert np.array_equal(rows["state"][row, t], state)
            state, reward, terminated, truncated, _ = env.step(int(rows["action_tokens"][row, t, 0]))
            assert rows["rewards"][row, t, 0] == reward
        assert rows["terminated"][row] == terminated and np.array_equal(rows["final_state"][row], state)
        assert (terminated or truncated) or row == pieces[-1]
    assert len(finished.lengths) >= len(pieces)


def test_another_worker_continues_bit_identically(
    config: RunConfig, start: Callable[[RunConfig], ControlRollout], tmp_path: Path
) -> None:
    first, second = start(config), start(config)
    played = [first.collect(i, (0, i, "rollout"), tmp_path) for i in (1, 2)]
    rows, ended = second.collect(2, (0, 2, "rollout"), tmp_path)
    assert digest_of(rows) == digest_of(played[1][0]) and ended == played[1][1]


def test_evaluation_takes_the_most_probable_action(
    config: RunConfig, start: Callable[[RunConfig], ControlRollout]
) -> None:
    engine, env = start(config), gym.make("CartPole-v1", max_episode_steps=20)
    returns = []
    for episode in range(3):
        state, _ = env.reset(seed=derive_seed(0, "evaluation episode", episode) % (LARGEST_ENV_SEED + 1))
        total, over = 0.0, False
        while not over:
            action = int(engine.policy.model(torch.from_numpy(state)[None]).argmax())
            state, reward, terminated, truncated, _ = env.step(action)
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    assert engine.evaluate(range(3)).returns == returns


def test_actions_are_those_of_the_space() -> None:
    indices = np.array([[[0.0]], [[2.0]]], np.float32)
    numbers = executable_actions(Discrete(3, start=-1), indices)
    assert numbers.tolist() == [[-1], [1]] and numbers.dtype == np.int64
    assert executable_actions(Box(-1, 1, (1,)), indices).tolist() == [[[0.0]], [[1.0]]]


def test_ppo_raises_the_return_of_cartpole(start: Callable[[RunConfig], ControlRollout]) -> None:
    words = ("env.id=CartPole-v1", "env.max_steps=500", "rollout.envs_per_worker=8", "rollout.num_steps=256")
    config: Any = compose_config(["experiment=reacher", "algorithm=ppo", *SIZES, "rollout.num_workers=1", *words])
    engine, trainer, returns = start(config), new_trainer(config), []
    engine.update_weights(trainer.weights(), 0)
    for iteration in range(1, 9):
        columns, finished = engine.collect(iteration, (0, iteration, "rollout"))
        returns.append(np.mean(finished.returns))
        if returns[-1] > 100:
            break
        rows = to_batch(columns)
        call = SimpleNamespace(seed=0, iteration=iteration, policy_version=iteration, node_id="train_actor_critic")
        for function in (tasks.value_steps, tasks.compute_advantage, tasks.split_decisions, tasks.compute_old_log_prob):
            rows = function(rows, worker=trainer, call=call).batch
        call.positions, call.total_rows = np.arange(len(rows)), len(rows)
        tasks.train_actor_critic(rows, worker=trainer, call=call)
        engine.update_weights(trainer.weights(), iteration)
    trainer.close()
    assert returns[0] < 40 and returns[-1] > 100  # a random policy has about 22
