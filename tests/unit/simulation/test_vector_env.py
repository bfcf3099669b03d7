"""Tests of the vector environment: equal trajectories in any process, clear errors, no process left behind."""

import os
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
from counting_env import Counter, half_cheetah
from gymnasium.spaces import Dict, Text
from hypothesis import given, settings
from hypothesis import strategies as st

from embodyflow.errors import ConfigError
from embodyflow.simulation.vector.env import EnvError, EpisodesLostError, VectorEnv


@pytest.fixture
def no_new_process():
    """Check that the test leaves no child process."""
    before = set(psutil.Process().children())
    yield
    assert set(psutil.Process().children()) <= before


def chunk(*first_entries):
    """Return actions ``[1, C, 2]`` with the given first entries and zeros as second entries."""
    return np.array([[(value, 0.0) for value in first_entries]], np.float32)


@pytest.fixture(params=[0, 2], ids=["in_process", "two_processes"])
def num_workers(request):
    return request.param


@pytest.fixture(scope="module")
def three_counters():
    """Yield three counters in two processes that end after 2 (terminated), 4 (truncated) and 1000 steps."""
    fns = [partial(Counter, 2), partial(Counter, 4, truncate=True), Counter]
    with VectorEnv(fns, num_workers=2, chunk_size=3, info_keys=["success", "pid"]) as env:
        yield env


def test_a_chunk_stops_where_its_environment_does(num_workers):
    fns = [partial(Counter, 2), partial(Counter, 4, truncate=True), Counter]
    with VectorEnv(fns, num_workers=num_workers, chunk_size=3, info_keys=["success", "even"]) as env:
        first = env.reset(options=[{"start": 0}, {"start": 10}, {"start": -50}])
        assert first["count"].tolist() == [[0.0], [10.0], [-50.0]]
        step = env.step(np.repeat(chunk(1, 2, 3), 3, axis=0))
        assert step.rewards.tolist() == [[1, 2, 0], [1, 2, 3], [1, 2, 3]]
        assert step.rewards.dtype == np.float32
        assert step.num_steps.tolist() == [2, 3, 3]
        assert step.terminated.tolist() == [True, False, False]
        assert step.truncated.tolist() == [False, False, False]
        assert step.observation["count"].tolist() == [[3.0], [16.0], [-44.0]]
        assert step.observation["parity"].tolist() == [0, 1, 1]
        assert step.infos["success"].tolist() == [[0, 0, 0], [1, 1, 1], [0, 0, 0]]
        assert step.infos["even"].tolist() == [[0, 1, 0], [0, 1, 0], [0, 1, 0]]
        step = env.step(np.repeat(chunk(1, 2, 3), 2, axis=0), indices=[2, 1])
        assert step.num_steps.tolist() == [3, 1]
        assert step.truncated.tolist() == [False, True]
        assert step.rewards.tolist() == [[1, 2, 3], [1, 0, 0]]


def test_a_finished_environment_must_be_reset(three_counters):
    three_counters.reset()
    three_counters.step(np.repeat(chunk(0, 0, 0), 3, axis=0))
    with pytest.raises(ValueError, match=r"environments \[0\] are finished"):
        three_counters.step(np.repeat(chunk(0, 0, 0), 2, axis=0), indices=[2, 0])
    three_counters.reset(indices=[0])
    assert three_counters.step(chunk(0, 0, 0), indices=[0]).num_steps.tolist() == [2]


def test_results_are_copies(three_counters):
    first = three_counters.reset(options=[{"start": 1}] * 3)
    three_counters.step(np.repeat(chunk(1, 1, 1), 3, axis=0))
    assert first["count"].tolist() == [[1.0]] * 3


def test_half_cheetah_steps_as_gymnasium_does(num_workers):
    seeds = [7, 8, 2**62]
    actions = np.random.default_rng(0).uniform(-1, 1, (3, 3, 5, 6)).astype(np.float32)
    with VectorEnv([half_cheetah] * 3, num_workers=num_workers, chunk_size=5, info_keys=["x_position"]) as env:
        first = env.reset(seeds=seeds)["state"]
        steps = [env.step(actions[t]) for t in range(3)]
    for i, seed in enumerate(seeds):
        reference = half_cheetah()
        assert np.array_equal(reference.reset(seed=seed)[0], first[i])
        for t, step in enumerate(steps):
            played = [reference.step(action) for action in actions[t, i][: step.num_steps[i]]]
            observation, _, _, truncated, _ = played[-1]
            assert np.array_equal(observation, step.observation["state"][i])
            positions = [info["x_position"] for *_, info in played]
            assert step.infos["x_position"][i].tolist() == positions + [0.0] * (5 - len(positions))
            assert truncated == step.truncated[i]
            rewards = [np.float32(reward) for _, reward, *_ in played]
            assert step.rewards[i].tolist() == rewards + [0.0] * (5 - len(rewards))
    assert [step.num_steps.tolist() for step in steps] == [[5] * 3, [5] * 3, [2] * 3]


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_partition_of_calls_gives_the_same_trajectories(three_counters, data):
    """Check that the split of environments into calls, their order and pipelining do not matter."""
    env = three_counters
    actions = np.arange(18, dtype=np.float32).reshape(3, 3, 2) / 7
    starts = [{"start": i} for i in range(3)]
    env.reset(options=starts)
    expected = env.step(actions)
    order = data.draw(st.permutations(range(3)))
    cut = data.draw(st.integers(1, 2))
    env.reset(options=starts)
    for part in (order[:cut], order[cut:]):
        env.step_async(actions[part], part)
    for part in (order[:cut], order[cut:]):
        step = env.step_wait()
        assert np.array_equal(step.observation["count"], expected.observation["count"][part])
        assert np.array_equal(step.rewards, expected.rewards[part])
        assert np.array_equal(step.num_steps, expected.num_steps[part])


def test_environments_are_reset_while_others_of_their_process_step(three_counters):
    env = three_counters
    env.reset(options=[{"start": i} for i in range(3)])
    env.step_async(chunk(1, 1, 1), [2])
    env.reset_async([0, 1], options=[{"start": 20}, {"start": 30}])
    with pytest.raises(ValueError, match=r"\[0\] are finished or in flight"):
        env.step_async(chunk(1, 1, 1), [0])
    with pytest.raises(ValueError, match=r"\[2\] are in flight"):
        env.reset_async([2])
    with pytest.raises(RuntimeError, match="reset_wait without a reset_async"):
        env.reset_wait()
    assert env.step_wait().observation["count"].tolist() == [[5.0]]
    with pytest.raises(RuntimeError, match="step while a reset_async is in flight: call reset_wait first"):
        env.step(chunk(1, 1, 1), [2])
    assert env.reset_wait()["count"].tolist() == [[20.0], [30.0]]
    assert env.step(np.repeat(chunk(1, 1, 1), 3, axis=0)).observation["count"].tolist() == [[22.0], [33.0], [8.0]]


def test_there_are_two_halves_only_with_processes(three_counters):
    assert three_counters.halves == [[0], [1, 2]]
    with VectorEnv([Counter] * 4, chunk_size=1) as env:
        assert env.halves == [[0, 1, 2, 3]]
    with VectorEnv([Counter], num_workers=1, chunk_size=1) as env:
        assert env.halves == [[0]]


def test_environments_are_spread_over_processes(three_counters):
    three_counters.reset()
    pids = three_counters.step(np.repeat(chunk(0, 0, 0), 3, axis=0)).infos["pid"][:, 0]
    assert pids[0] == pids[2] != pids[1]
    assert os.getpid() not in pids


def test_the_caller_steps_the_last_shard():
    with VectorEnv([Counter] * 3, num_workers=2, caller_steps=True, chunk_size=1, info_keys=["pid"]) as env:
        env.reset(options=[{"start": i} for i in range(3)])
        step = env.step(np.ones((3, 1, 2)))
    assert step.observation["count"].tolist() == [[2.0], [3.0], [4.0]]
    pids = step.infos["pid"][:, 0]
    assert pids[1] == os.getpid()
    assert pids[0] == pids[2] != os.getpid()


def test_an_environment_in_flight_takes_no_other_call(three_counters):
    env = three_counters
    env.reset()
    env.step_async(chunk(0, 0, 0), [2])
    with pytest.raises(ValueError, match=r"\[2\] are finished or in flight"):
        env.step_async(chunk(0, 0, 0), [2])
    with pytest.raises(RuntimeError, match="step_wait first"):
        env.reset()
    with pytest.raises(RuntimeError, match="step_wait first"):
        env.step(chunk(0, 0, 0), [1])
    env.step_wait()
    with pytest.raises(RuntimeError, match="without a step_async"):
        env.step_wait()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda env: env.step(np.zeros((3, 2, 2))), r"must have shape \(3, 3, 2\), have \(3, 2, 2\)"),
        (lambda env: env.step(np.zeros((2, 3, 2)), [1, 1]), "distinct"),
        (lambda env: env.step(np.zeros((1, 3, 2)), [3]), r"in 0\.\.2"),
        (lambda env: env.reset([0, 1], seeds=[1]), "2 environments, but 1 seeds"),
    ],
)
def test_wrong_arguments(three_counters, call, message):
    three_counters.reset()
    with pytest.raises(ValueError, match=message):
        call(three_counters)
    assert three_counters.step(np.zeros((3, 3, 2))).num_steps.tolist() == [2, 3, 3]  # still usable


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"env_fns": []}, "env_fns"),
        ({"chunk_size": 0}, "chunk_size"),
        ({"num_workers": 3}, r"num_workers: must be in 0\.\.2"),
        ({"num_workers": -1}, "num_workers"),
        ({"env_fns": [Counter, half_cheetah]}, "equal shapes"),
    ],
)
def test_wrong_configuration(arguments, message):
    with pytest.raises(ConfigError, match=message):
        VectorEnv(**{"env_fns": [Counter] * 2, "chunk_size": 1} | arguments)


def test_an_observation_that_is_not_an_array_is_refused():
    class TextCounter(Counter):
        observation_space = Dict({"instruction": Text(10)})

    with pytest.raises(ConfigError, match="instruction"):
        VectorEnv([TextCounter], chunk_size=1)


def test_an_exception_names_its_environment(num_workers):
    with VectorEnv([Counter] * 4, num_workers=num_workers, chunk_size=1) as env:
        env.reset()
        actions = np.zeros((4, 1, 2))
        actions[2, 0, 0] = 13
        with pytest.raises(EnvError, match=r"(?s)environment 2 failed.*in step.*ValueError: unlucky") as caught:
            env.step(actions)
        assert caught.value.index == 2
        with pytest.raises(ValueError, match=r"\[1\] are finished"):
            env.step(np.zeros((1, 1, 2)), [1])
        env.reset(options=[{"start": 5}] * 4)
        assert env.step(np.ones((4, 1, 2))).observation["count"].tolist() == [[7.0]] * 4


def test_a_missing_info_key_is_an_error():
    with VectorEnv([Counter] * 2, chunk_size=1, info_keys=["succes"]) as env:
        env.reset()
        with pytest.raises(EnvError, match=r"no 'succes', it has \['even', 'pid', 'success'\]"):
            env.step(np.zeros((2, 1, 2)))


@pytest.mark.parametrize("value", [None, np.nan])
def test_an_info_that_is_not_a_number_is_an_error(value, num_workers):
    class NotANumber(Counter):
        even_values = (value, False)

    with VectorEnv([Counter, NotANumber], num_workers=num_workers, chunk_size=3, info_keys=["even"]) as env:
        env.reset(seeds=[0, 1])
        with pytest.raises(EnvError, match=r"environment 1, .*returned info\['even'\] that is not finite, also in a"):
            env.step(np.zeros((2, 3, 2)))


@pytest.mark.parametrize("value", [0.3, -1, "yes", None, [True, False]])
@pytest.mark.parametrize("moment", ["reset", "step"])
def test_a_success_that_is_neither_true_nor_false_is_an_error(value, moment, num_workers):
    class Partly(Counter):
        def reset(self, **kwargs):
            observation, info = super().reset(**kwargs)
            return observation, info | ({"success": value} if moment == "reset" else {})

        def step(self, action):
            *rest, info = super().step(action)
            return *rest, info | {"success": value}

    refused = pytest.raises(EnvError, match=r"(?s)environment 1 failed.*ValueError: its info\['success'\] ")
    with VectorEnv([Counter, Partly], num_workers=num_workers, chunk_size=2, info_keys=["success"]) as env, refused:
        env.reset()
        env.step(np.zeros((2, 2, 2)))


@pytest.mark.parametrize(
    ("key", "value", "found"),
    [
        ("count", np.zeros(()), r"float64 \(1,\) as in its observation_space, is float64 \(\)"),
        ("count", [1.0, 2.0], r"float64 \(1,\) .*, is float64 \(2,\)"),
        ("count", ["1"], r"float64 \(1,\) .*, is <U1 \(1,\)"),
        ("parity", 0.5, r"int64 \(\) .*, is float64 \(\)"),
        ("parity", [1], r"int64 \(\) .*, is int64 \(1,\)"),
    ],
)
def test_an_observation_that_changes_its_shape_or_kind_is_an_error(key, value, found, num_workers):
    class Changing(Counter):
        def observe(self):
            return super().observe() | ({key: value} if self.steps else {})

    with VectorEnv([Counter, Changing], num_workers=num_workers, chunk_size=1) as env:
        env.reset()
        with pytest.raises(
            EnvError, match=rf"(?s)environment 1 failed.*ValueError: its observation '{key}' must be {found}"
        ):
            env.step(np.ones((2, 1, 2)))


def test_large_finite_values_pass(num_workers):
    class Large(Counter):
        def observe(self):
            return {"count": np.array([1e300]), "parity": 0}

    with VectorEnv([Large, Counter], num_workers=num_workers, chunk_size=1) as env:
        assert env.reset()["count"][0].tolist() == [1e300]
        assert env.step(np.zeros((2, 1, 2))).observation["count"][0].tolist() == [1e300]


def test_an_environment_that_fails_to_build_leaves_no_process(no_new_process):
    def broken():
        raise OSError("no such scene")

    with pytest.raises(EnvError, match=r"(?s)environment 1 failed.*no such scene"):
        VectorEnv([Counter, broken], num_workers=2, chunk_size=1)


def test_a_death_with_an_episode_without_a_seed_is_an_error_at_once(no_new_process):
    with VectorEnv([Counter] * 2, num_workers=2, chunk_size=1) as env:
        env.reset()
        began = time.monotonic()
        with pytest.raises(EpisodesLostError, match=r"process 1 \(pid \d+\) died, exit code -9"):
            env.step([[[0, 0]], [[14, 0]]])
        assert time.monotonic() - began < 5
        assert env.reset(options=[{"start": 3}] * 2)["count"].tolist() == [[3.0]] * 2
        assert env.step([[[1, 0]]] * 2).observation["count"].tolist() == [[4.0]] * 2


def test_close_ends_processes_even_when_an_environment_hangs(monkeypatch, no_new_process):
    monkeypatch.setattr("embodyflow.simulation.vector.env.CLOSE_SECONDS", 0.5)
    env = VectorEnv([Counter] * 2, num_workers=2, chunk_size=1)
    env.reset()
    env.step_async([[[15, 0]], [[0, 0]]])
    env.close()
    env.close()
    with pytest.raises(RuntimeError, match="closed"):
        env.reset()


def test_close_raises_if_an_environment_fails_to_close(num_workers, no_new_process):
    class CloseFails(Counter):
        def close(self):
            raise OSError("renderer is gone")

    env = VectorEnv([Counter, CloseFails], num_workers=num_workers, chunk_size=1)
    with pytest.raises(EnvError, match=r"(?s)environment 1 failed.*renderer is gone"):
        env.close()


SCRIPT = """
import time, gymnasium as gym, numpy as np, psutil
from embodyflow.simulation.vector.env import VectorEnv
class Slow(gym.Env):  # defined in __main__ without a guard, which must not be imported a second time
    observation_space = action_space = gym.spaces.Box(-1, 1, (1,))
    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}
    def step(self, action):
        time.sleep(60)
env = VectorEnv([Slow] * 2, num_workers=2, chunk_size=1)
env.reset()
env.step_async(np.zeros((2, 1, 1)))
print(*[child.pid for child in psutil.Process().children()], flush=True)
time.sleep(60)
"""


def test_no_process_outlives_a_killed_caller():
    caller = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True)
    pids = [int(pid) for pid in caller.stdout.readline().split()]
    assert len(pids) == 2
    caller.kill()
    caller.communicate()
    deadline = time.monotonic() + 10
    while any(psutil.pid_exists(pid) for pid in pids):
        assert time.monotonic() < deadline, "environment processes outlive their caller"
        time.sleep(0.1)


def test_shared_memory_has_no_file(three_counters):
    assert not list(Path("/dev/shm").glob("embodyflow-vector-env-*"))


def test_a_thread_may_build_a_vector_env():
    """Build it in a thread that ends before the environments are used, as a Ray worker may do."""
    built = []
    thread = threading.Thread(target=lambda: built.append(VectorEnv([Counter], num_workers=1, chunk_size=1)))
    thread.start()
    thread.join()
    with built[0] as env:
        env.reset(options=[{"start": 1}])
        assert env.step(np.ones((1, 1, 2))).observation["count"].tolist() == [[3.0]]
