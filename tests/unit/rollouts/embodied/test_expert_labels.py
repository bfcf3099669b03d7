"""Episodes with an expert beside the learner: whose actions are executed, which states are labelled, and with what."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from node_calls import call_of

import tasks
from embodyflow.config.robots.dagger import DaggerConfig
from embodyflow.errors import ConfigError
from embodyflow.rollouts.embodied.embodied_rollout import EmbodiedRollout
from embodyflow.rollouts.embodied.episode_rows import Episode
from embodyflow.rollouts.embodied.expert_labels import EpisodeLabeller
from embodyflow.simulation.make_env import make_env
from embodyflow.simulation.vector.worker import EnvNotFiniteError

MAX_STEPS, CHUNK = 7, 3


class Line(gym.Env[dict[str, np.ndarray], np.ndarray]):
    """A point that begins at the goal's number and moves by its action; the expert answers minus its position.

    Args:
        num_steps: Steps after which an episode is truncated.
        wall: Position from which on an episode is terminated.
    """

    observation_space = gym.spaces.Dict({"state": gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)})
    action_space = gym.spaces.Box(-100, 100, (1,), np.float32)

    def __init__(self, num_steps: int = MAX_STEPS, wall: float = np.inf) -> None:
        self.num_steps, self.wall = num_steps, wall

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        assert options is not None
        self.position, self.executed = np.array([options["goal"]], np.float32), list[float]()
        return {"state": self.position}, {}

    def step(self, action: np.ndarray) -> Any:
        self.executed.append(float(action[0]))
        self.position += action  # the same buffer is returned at every step
        over, position = len(self.executed) == self.num_steps, self.position[0]
        return {"state": self.position}, 0.5, bool(position >= self.wall), over, {"success": position > 20}

    def expert_action(self) -> np.ndarray:
        return -self.position


def far_away(observation: dict[str, np.ndarray], policy_action: np.ndarray, expert_action: np.ndarray) -> bool:
    assert expert_action[0] == -observation["state"][0] and policy_action[0] in (1, 2, 3)
    return bool(observation["state"][0] > 12)


def play(
    seeds: Sequence[int] = (0,), iteration: int = 1, *, env: Line | None = None, goal: int = 10, **settings: Any
) -> tuple[dict[str, Any], Line, list[float]]:
    """Play an episode from a goal per seed with a policy whose chunks are 1, 2, 3; also return where it decided."""
    env, decided = env or Line(), list[float]()

    def act(entries: dict[str, np.ndarray], task: int, noise: np.ndarray) -> np.ndarray:
        decided.append(float(entries["state"][0]))
        return np.array([[1], [2], [3]], np.float32)

    config: Any = SimpleNamespace(
        dagger=DaggerConfig(steps=1, **settings), env=SimpleNamespace(max_steps=MAX_STEPS, id="line")
    )
    labelled = EpisodeLabeller(config, [env], act, lambda seed: np.zeros((MAX_STEPS, CHUNK), np.float32))
    episodes = [Episode(row, 100 + row, row, 0, goal) for row in range(len(seeds))]
    return labelled.play(episodes, seeds, iteration), env, decided


def test_a_label_is_the_expert_s_action_in_the_state_that_the_learner_visits() -> None:
    rows, env, decided = play()
    states = [10, 11, 13, 16, 17, 19, 22]
    assert env.executed == [1, 2, 3, 1, 2, 3, 1] and decided == [10, 16, 22]
    assert rows["state"][0, :, 0].tolist() == states
    assert rows["expert_actions"][0, :, 0].tolist() == [-state for state in states]
    assert rows["labelled"].all() and not rows["by_expert"].any()
    assert (rows["num_steps"][0], rows["episode_return"][0], rows["success"][0]) == (7, 3.5, True)
    assert (rows["uid"][0], rows["goal"][0], rows["truncated"][0], rows["terminated"][0]) == (100, 10, True, False)


def test_the_expert_executes_whole_decisions_by_a_draw_of_the_episode() -> None:
    rows, *_ = play(seeds=range(300), beta=0.5)
    again, *_ = play(seeds=range(300), beta=0.5)
    assert np.array_equal(rows["by_expert"], again["by_expert"])
    decisions = rows["by_expert"][:, [0, 3, 6]]
    assert (decisions[:, 0] != decisions[:, 1]).mean() == pytest.approx(0.5, abs=0.1), "each decision has its own draw"
    assert np.array_equal(rows["by_expert"], np.repeat(decisions, 3, axis=1)[:, :MAX_STEPS])
    assert decisions.mean() == pytest.approx(0.5, abs=0.05)
    assert rows["labelled"].all()
    taken = rows["by_expert"][:, 0]
    assert (rows["state"][taken, 1, 0] == 0).all() and (rows["state"][~taken, 1, 0] == 11).all()


def test_the_expert_s_share_falls_as_a_power_of_beta() -> None:
    settings = DaggerConfig(steps=1, beta=0.5)
    assert [settings.expert_share(iteration) for iteration in (1, 2, 3)] == [0.5, 0.25, 0.125]
    assert DaggerConfig(steps=1).expert_share(1) == 0
    rows, *_ = play(seeds=range(300), iteration=3, beta=0.5)
    assert rows["by_expert"][:, [0, 3, 6]].mean() == pytest.approx(0.125, abs=0.04)


def test_a_gate_lets_the_expert_take_over_and_only_its_steps_are_labelled() -> None:
    rows, env, decided = play(gate=f"{__name__}:far_away")
    assert env.executed == [1, 2, -13, 1, 2, 3, 1]
    assert decided == [10, 0, 6], "the learner decides anew where the expert leaves off"
    assert rows["by_expert"][0].tolist() == rows["labelled"][0].tolist() == [False, False, True, *[False] * 4]


def further_than_the_action_space(observation: dict[str, np.ndarray], policy: np.ndarray, expert: np.ndarray) -> bool:
    return bool(expert[0] < -100)


def always(observation: dict[str, np.ndarray], policy: np.ndarray, expert: np.ndarray) -> bool:
    return True


def test_a_gate_compares_the_action_that_the_environment_would_execute() -> None:
    rows, env, _ = play(goal=150, gate=f"{__name__}:further_than_the_action_space")
    assert not rows["by_expert"].any() and env.executed[0] == 1


def test_the_expert_executes_its_action_within_bounds_and_the_label_is_its_own() -> None:
    rows, env, _ = play(goal=150, gate=f"{__name__}:always")
    assert env.executed[:2] == [-100, -50] and rows["expert_actions"][0, :2, 0].tolist() == [-150, -50]


def test_an_episode_that_ends_within_a_chunk_has_no_further_steps() -> None:
    rows, env, _ = play(env=Line(wall=17))
    assert env.executed == [1, 2, 3, 1] and rows["num_steps"].tolist() == [4]
    assert rows["labelled"][0].tolist() == [True] * 4 + [False] * 3
    assert (rows["terminated"][0], rows["truncated"][0], rows["success"][0]) == (True, False, False)


def test_an_episode_that_does_not_end_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"^env.id=line: an episode continues after env.max_steps=7 steps"):
        play(env=Line(num_steps=MAX_STEPS + 1))


class Broken(Line):
    """A point whose position or reward is not a number from the first step on."""

    def __init__(self, quantity: str) -> None:
        super().__init__()
        self.quantity = quantity

    def step(self, action: np.ndarray) -> Any:
        observation, reward, *rest = super().step(action)
        if self.quantity == "reward":
            return observation, np.inf, *rest
        return {"state": self.position * np.nan}, reward, *rest


@pytest.mark.parametrize(("quantity", "name"), [("state", "an observation 'state'"), ("reward", "a reward")])
def test_numbers_that_are_not_finite_are_an_error(quantity: str, name: str) -> None:
    with pytest.raises(EnvNotFiniteError, match=f"^environment 0 returned {name} that is not finite"):
        play(env=Broken(quantity))


def test_an_expert_in_metaworld_labels_the_policy_s_states(tiny_config: Any) -> None:
    config = tiny_config("algorithm=dagger", "rollout.num_groups=2", "rollout.group_size=1", "rollout.keep_episodes=0")
    rollout = EmbodiedRollout(config, 0, 1)
    call = call_of(seed=0, iteration=1, node_id="rollout")
    output = tasks.label_episodes(None, worker=rollout, call=call)
    rows = output.batch
    env = make_env(config.env, config.env.tasks[0], "train")
    goal = int(rows["goal"][0])
    env.reset(seed=goal, options={"goal": goal})
    assert rows["expert_actions"][0, 0].tolist() == pytest.approx(env.unwrapped.expert_action().tolist())
    assert output.metrics["dagger/num_labels"].value == rows["num_steps"].sum()
    whole = rollout.label(rollout.training_episodes(0, 1), (0, 1, "rollout"), 1)
    halves = [EmbodiedRollout(config, rank, 2) for rank in (0, 1)]
    for half in halves:
        half.policy.model.load_state_dict(rollout.policy.model.state_dict())
    parts = [half.label(half.training_episodes(0, 1), (0, 1, "rollout"), 1) for half in halves]
    for name, column in whole.items():
        assert np.array_equal(np.concatenate([part[name] for part in parts]), column), name
