"""Natively batched environments: the transitions of single environments in every autoreset mode, and replays."""

from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from embodyflow.config.robots.environment import EnvConfig
from embodyflow.simulation.batched.source import open_batch
from embodyflow.simulation.batched.vector_env import BatchedVectorEnv, aligned
from embodyflow.simulation.vector.env import Supervision
from embodyflow.simulation.vector.worker import EnvError

MODES = ("Disabled", "NextStep", "SameStep")
LANES, STEPS = 3, 30
ACTIONS = np.random.default_rng(0).uniform(-1, 1, (STEPS, LANES, 1)).astype(np.float32) * 1.5


def env_config(resets: str = "seeded", mode: str = "entry_point", max_steps: int = 12, **values: Any) -> EnvConfig:
    vector = {"mode": mode, "resets": resets, **values.pop("vector", {})}
    given = {"id": "point_masses:tests/Points-v0", "tasks": (), "max_steps": max_steps, "vector": vector, **values}
    return EnvConfig.model_validate(given)


def opened(env: EnvConfig, num_processes: int = 0, lanes: int = LANES) -> BatchedVectorEnv:
    return open_batch(env, lanes, num_processes, Supervision.from_config(env))


def of_kind(kind: str, autoreset: str, resets: str) -> EnvConfig:
    """Return a batch by its own entry point, or Gymnasium's of single environments."""
    if kind == "sync":
        return env_config(resets, "sync", vector={"autoreset": autoreset})
    return env_config(resets, kwargs={"autoreset": autoreset})


def seed_of(lane: int, episode: int) -> int:
    return 10 * lane + episode


Transition = tuple[bytes, bytes, float, bool, bool, bytes]
"""Observation, action, reward, terminated, truncated and the next observation, which may be that of the end."""


def play(env: BatchedVectorEnv, actions: np.ndarray = ACTIONS) -> list[list[Transition]]:
    """Return the transitions of each lane."""
    episodes = np.zeros(LANES, int)
    state = env.reset(seeds=[7] * LANES if env.resets_itself else [seed_of(lane, 0) for lane in range(LANES)])["state"]
    found: list[list[Transition]] = [[] for _ in range(LANES)]
    for chosen in actions:
        step = env.step(chosen[:, None])
        after = step.observation["state"]
        for lane in np.flatnonzero(step.num_steps):
            flags = bool(step.terminated[lane]), bool(step.truncated[lane])
            reward = float(step.rewards[lane, 0])
            found[lane].append((state[lane].tobytes(), chosen[lane].tobytes(), reward, *flags, after[lane].tobytes()))
        state, over = after.copy(), np.flatnonzero(step.terminated | step.truncated)
        if over.size:
            episodes[over] += 1
            seeds = None if env.resets_itself else [seed_of(lane, episodes[lane]) for lane in over.tolist()]
            state[over] = env.reset(over.tolist(), seeds)["state"]
    return found


def by_hand(seeds: list[Any], lane: int, actions: np.ndarray) -> list[Transition]:
    """Play a single environment with the seeds of its episodes and the actions of a lane."""
    env = gym.make("point_masses:tests/Points-v0", max_episode_steps=12)
    left = list(seeds)
    state, found = env.reset(seed=left.pop(0))[0], []
    for action in actions:
        after, reward, terminated, truncated, _ = env.step(action)
        flags = bool(terminated), bool(truncated)
        found.append((state.tobytes(), action.tobytes(), float(np.float32(reward)), *flags, after.tobytes()))
        state = env.reset(seed=left.pop(0))[0] if terminated or truncated else after
    env.close()
    return found


@pytest.mark.parametrize("kind", ["entry_point", "sync"])
@pytest.mark.parametrize("autoreset", MODES)
def test_seeded_resets_give_the_transitions_of_single_environments(kind: str, autoreset: str) -> None:
    with closing(opened(of_kind(kind, autoreset, "seeded"))) as env:
        found = play(env)
    for lane in range(LANES):
        expected = by_hand([seed_of(lane, k) for k in range(STEPS)], lane, ACTIONS[:, lane])
        assert found[lane] == expected
        assert {(each[3], each[4]) for each in found[lane]} >= {(False, True)}
    assert any(each[3] for lane in found for each in lane), "no episode terminated"


@pytest.mark.parametrize("kind", ["entry_point", "sync"])
@pytest.mark.parametrize("autoreset", MODES[1:])
def test_automatic_resets_give_the_transitions_of_single_environments(kind: str, autoreset: str) -> None:
    """In the mode NextStep an action is ignored after each end, and nothing is recorded for it."""
    with closing(opened(of_kind(kind, autoreset, "automatic"))) as env:
        found = play(env)
    for lane in range(LANES):
        used = [np.frombuffer(each[1], np.float32) for each in found[lane]]
        expected = by_hand([7 + lane, *[None] * STEPS], lane, np.array(used))
        assert found[lane] == expected
        ends = sum(each[3] or each[4] for each in found[lane][:-1])
        assert ends >= 2 and len(found[lane]) == STEPS - (ends if autoreset == "NextStep" else 0)


CASES = [(autoreset, "seeded") for autoreset in MODES] + [(autoreset, "automatic") for autoreset in MODES[1:]]


FAULTS = [("Disabled", "seeded", 1, "kill"), ("NextStep", "automatic", 26, "hang"), ("SameStep", "seeded", 26, "nan")]


@pytest.mark.parametrize(("autoreset", "resets", "at", "kind"), [*((*case, 26, "kill") for case in CASES), *FAULTS])
def test_a_process_that_dies_hangs_or_returns_nan_is_replayed(
    autoreset: str, resets: str, at: int, kind: str, tmp_path: Path
) -> None:
    with closing(opened(env_config(resets, kwargs={"autoreset": autoreset}))) as env:
        expected = play(env)
    fault = {"autoreset": autoreset, "plan": str(tmp_path / "died"), "at": at, "fault": kind}
    with closing(opened(env_config(resets, kwargs=fault, step_timeout=5.0), num_processes=1)) as env:
        assert play(env) == expected
        assert env.supervision.restarts == 1


@pytest.mark.parametrize(("autoreset", "resets"), CASES)
@pytest.mark.parametrize("steps", [5, 12, 20])
def test_another_batch_continues_from_histories(autoreset: str, resets: str, steps: int) -> None:
    config = env_config(resets, kwargs={"autoreset": autoreset})
    with closing(opened(config)) as one, closing(opened(config)) as other:
        play(one, ACTIONS[:steps])
        play(other, ACTIONS[:3])  # episodes that the histories replace
        histories = one.histories()
        state = other.replay(histories)["state"]
        assert [len(each.actions) for each in histories] != [0] * LANES or resets == "seeded"
        for chosen in ACTIONS[steps : steps + 3]:
            expected, found = one.step(chosen[:, None]), other.step(chosen[:, None])
            assert found.observation["state"].tobytes() == expected.observation["state"].tobytes()
            assert found.rewards.tobytes() == expected.rewards.tobytes()
            assert found.num_steps.tolist() == expected.num_steps.tolist()
    assert state.shape == (LANES, 2)


def test_histories_are_aligned_at_their_ends() -> None:
    rounds = [(begins.tolist(), dict(steps)) for begins, steps in aligned([1, 3, 0])]
    assert rounds == [([1], {1: 0}), ([], {1: 1}), ([0], {0: 0, 1: 2}), ([2], {})]
    assert [(begins.tolist(), dict(steps)) for begins, steps in aligned([])] == [([], {})]


def test_reset_options_reach_a_batch() -> None:
    """Gymnasium's cart poles are one array; the options bound what a reset draws, an automatic one too."""
    values = {"id": "CartPole-v1", "reset_options": {"low": 0.03, "high": 0.04}}
    with closing(opened(env_config("automatic", **values))) as env:
        for seed in (0, 1):
            first = env.reset(seeds=[seed] * LANES)["state"]
            assert (first >= 0.03).all() and (first <= 0.04).all() and len(np.unique(first)) == first.size
            for _ in range(40):
                step = env.step(np.ones((LANES, 1), int))
                if (begun := step.num_steps == 0).any():
                    state = step.observation["state"][begun]
                    assert (state >= 0.03).all() and (state <= 0.04).all()


def test_an_episode_beyond_the_limit_is_an_error() -> None:
    with closing(opened(env_config(max_steps=5, id="point_masses:tests/LongPoints-v0"))) as env:
        env.reset(seeds=[0] * LANES)
        for _ in range(4):
            env.step(np.zeros((LANES, 1, 1)))
        with pytest.raises(EnvError, match=r"env.max_steps=5: the episode of lane 0 goes on"):
            env.step(np.zeros((LANES, 1, 1)))
