"""Embodied rollouts with discrete actions, against plain Gymnasium loops."""

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

from benchmarks.control.in_process import InProcessRun
from embodyflow.config.composition.compose import compose_config, validate_config
from embodyflow.errors import ConfigError
from embodyflow.rollouts.embodied.executable_actions import null_action, numbered_actions
from embodyflow.rollouts.replay import first_difference

CHOICES = {"Walk-v0": (3,), "TwoSwitches-v0": (3, 4), "Buttons-v0": (2, 2, 2)}
WORDS = (
    *("experiment=embodied", "env.tasks=[walk to three]", "env.adapter.success_termination=true", "env.max_steps=14"),
    *("policy.state_dim=null", "policy.action_dim=null", "policy.chunk_size=3", "policy.hidden_size=16"),
    *("warm_start=null", "rollout.num_groups=4", "rollout.group_size=4"),
    *("rollout.envs_per_worker=4", "rollout.num_workers=1", "evaluation.num_goals=4", "trainer.num_minibatches=1"),
)
Start = Callable[..., InProcessRun]


def words_for(env_id: str, *words: str) -> list[str]:
    return [*WORDS, f"env.id=numbered_envs:{env_id}", *words]


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a function that starts runs, which are closed at the end."""
    runs: list[InProcessRun] = []

    def started(env_id: str, *words: str) -> InProcessRun:
        runs.append(InProcessRun(words_for(env_id, *words)))
        runs[-1].rollout.update_weights(runs[-1].trainer.weights(), 0)
        return runs[-1]

    yield started
    for run in runs:
        run.trainer.close()
        run.rollout.close()


@pytest.mark.parametrize(("env_id", "choices"), CHOICES.items())
def test_the_environment_sets_the_choices(env_id: str, choices: tuple[int, ...]) -> None:
    config: Any = compose_config(words_for(env_id))
    assert (config.policy.num_choices, config.policy.action_dim) == (choices, len(choices))
    assert validate_config(config.model_dump(mode="json")) == config


@pytest.mark.parametrize("env_id", CHOICES)
@pytest.mark.parametrize("num_processes", [0, 1])
def test_rows_match_gymnasium_and_replay(env_id: str, num_processes: int, start: Start) -> None:
    run = start(env_id, f"rollout.env_processes={num_processes}")
    rows = run.rollout.play(run.rollout.training_episodes(0, 1), "train", (0, 1, "rollout"))
    env: gym.Env[Any, Any] = gym.make(f"numbered_envs:{env_id}", max_episode_steps=14)
    first = np.asarray(getattr(env.action_space, "start", 0))
    assert rows["terminated"].any()
    for row in range(16):
        state, _ = env.reset(seed=int(rows["goal"][row]))
        over, steps = False, 0
        for t, chunk in enumerate(rows["actions"][row]):
            if over:
                break
            np.testing.assert_array_equal(rows["state"][row, t], state)
            for index in chunk:
                assert (index < CHOICES[env_id]).all()
                number = index.astype(np.int64) + first
                action = number[0] if isinstance(env.action_space, Discrete) else number.astype(env.action_space.dtype)
                state, _, terminated, truncated, _ = env.step(action)
                over, steps = terminated or truncated, steps + 1
                if over:
                    break
        np.testing.assert_array_equal(rows["final_state"][row], state)
        assert (rows["success"][row], rows["terminated"][row], rows["num_steps"][row]) == (
            terminated,
            terminated,
            steps,
        )
        assert first_difference(run.config, {name: column[row] for name, column in rows.items()}) is None
    tokens, mask = (rows[name].reshape(rows["actions"].shape) for name in ("action_tokens", "loss_mask"))
    np.testing.assert_array_equal(tokens[mask], rows["actions"][mask])


def test_grpo_learns_to_walk(start: Start) -> None:
    run = start("Walk-v0", "policy.chunk_size=1", "rollout.num_groups=12", "trainer.learning_rate=1e-2", "seed=2")
    rates = [run.iterate(iteration)["rollout/success_rate"] for iteration in range(1, 9)]
    assert rates[0] < 0.6 and rates[-1] > 0.9


@pytest.mark.parametrize(
    ("env_id", "words", "message"),
    [
        ("Walk-v0", ["policy.num_choices=[4]"], "policy.num_choices=[4]: the environment has [3]"),
        (
            "TwoSwitches-v0",
            ["policy.action_dim=2"],
            "policy.num_choices=null: means continuous actions, the environment's are MultiDiscrete([3 4]"
            ", start=[-1 0]); allowed is [3, 4], or policy.action_dim=null, which sets it",
        ),
        (
            "TwoSwitches-v0",
            ["policy.action_dim=1", "policy.num_choices=[3, 4]"],
            "policy.num_choices=[3, 4]: must be one number for each of action_dim=1",
        ),
        ("Grid-v0", [], "env: actions must be a one-dimensional Box, not MultiDiscrete"),
        (
            "Walk-v0",
            ["warm_start={num_demos: 2, steps: 5, batch_size: 4, learning_rate: 1e-3, smoothing_bins: 0}"],
            "warm_start: must be null with discrete actions, policy.num_choices=[3]",
        ),
        (
            "Walk-v0",
            ["policy={name: 'examples.own_policy.policy:Policy', action_dim: 1}"],
            "policy.name=examples.own_policy.policy:Policy: has continuous actions, the environment's are "
            "Discrete(3, start=-1); allowed is policy=tiny_vla",
        ),
    ],
)
def test_what_does_not_fit_is_one_line(env_id: str, words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose_config(words_for(env_id, *words))
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


def test_choices_are_refused_where_actions_are_continuous() -> None:
    words = [*WORDS, "env.id=Pendulum-v1", "policy.num_choices=[3]"]
    with pytest.raises(
        ConfigError, match=r"^policy.num_choices=\[3\]: chooses among numbered actions, .* allowed is null"
    ):
        compose_config(words)


def test_a_control_job_refuses_several_choices() -> None:
    words = [
        "experiment=reacher",
        "env.id=numbered_envs:TwoSwitches-v0",
        "policy.state_dim=null",
        "policy.action_dim=null",
    ]
    with pytest.raises(
        ConfigError, match=r"^env: actions of a control job must be a Box or Discrete, not MultiDiscrete"
    ):
        compose_config(words)


def test_indices_become_the_numbers_of_the_space() -> None:
    indices = np.array([[[0.0, 2.0]], [[1.0, 0.0]]], np.float32)
    numbers = numbered_actions(MultiDiscrete([3, 3], start=[-1, 5]), indices)
    assert numbers.tolist() == [[[-1, 7]], [[0, 5]]] and numbers.dtype == np.int64
    assert numbered_actions(MultiBinary(2), indices[1:]).tolist() == [[[1, 0]]]
    assert numbered_actions(Discrete(3, start=-1), indices[..., :1]).tolist() == [[-1], [0]]
    assert numbered_actions(Box(-1, 1, (2,)), indices) is indices


def test_the_null_action_moves_least() -> None:
    assert null_action(Discrete(3, start=-1)).tolist() == [0] and null_action(MultiBinary(2)).tolist() == [0, 0]
    box = Box(np.array([-1, 2, -np.inf]), np.array([3, np.inf, np.inf]), dtype=np.float32)
    assert null_action(box).tolist() == [1, 2, 0]
