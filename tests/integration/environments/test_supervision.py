"""Tests of environments that die, hang or return NaN: they recover bit-identically, or an error names the culprit."""

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
from faulty_envs import KINDS, FaultyPendulum, fault_marks

from embodyflow.errors import InfrastructureError
from embodyflow.simulation.vector.env import (
    EnvError,
    EnvQuarantinedError,
    EpisodesLostError,
    Supervision,
    VectorEnv,
)
from embodyflow.simulation.vector.shards import EnvProcessDiedError

pytestmark = pytest.mark.integration

SEEDS = (20, 21, 22)
CHUNK = 2
CHUNKS = np.random.default_rng(0).uniform(-2, 2, (5, 3, CHUNK, 1)).astype(np.float32)


@pytest.fixture
def vector_env(tmp_path, request):
    """Yield a function that builds three pendulums with planned faults; check that no process of theirs is left."""
    before, made = set(psutil.Process().children(recursive=True)), []

    def make(*faults, num_workers=2, step_timeout=30.0, max_restarts=20, **random_faults):
        plan = tmp_path / "plan.json"
        plan.write_text(json.dumps({"faults": faults, **random_faults}))
        supervision = Supervision(step_timeout=step_timeout, reset_timeout=30.0, max_restarts=max_restarts)
        env = VectorEnv(
            [partial(FaultyPendulum, str(plan))] * 3,
            num_workers=num_workers,
            chunk_size=CHUNK,
            names=["a", "b", "c"],
            supervision=supervision,
        )
        made.append(env)
        return env

    yield make
    for env in made:
        env.close()
    assert set(psutil.Process().children(recursive=True)) <= before


def play(env, chunks=CHUNKS, *, reset=True):
    """Return the bytes of all observations, rewards and numbers of steps."""
    given = [env.reset(seeds=SEEDS)["state"].tobytes()] if reset else []
    for chunk in chunks:
        step = env.step(chunk)
        given += [step.observation["state"].tobytes(), step.rewards.tobytes(), step.num_steps.tobytes()]
    return given


@pytest.fixture(scope="module")
def undisturbed():
    class Pendulum(FaultyPendulum):
        def __init__(self):
            super(FaultyPendulum.__mro__[1], self).__init__()
            self._plan = {}

    with VectorEnv([Pendulum] * 3, chunk_size=CHUNK) as env:
        return play(env)


def test_every_kind_of_fault_is_recovered(vector_env, undisturbed, tmp_path, caplog):
    faults = [{"seed": 20 + k % 3, "step": 2 * k - 1, "kind": kind} for k, kind in enumerate(KINDS)]
    env = vector_env(*faults, step_timeout=0.5, num_workers=1)
    assert play(env) == undisturbed
    assert len(fault_marks(tmp_path / "plan.json")) == len(KINDS) <= env.supervision.restarts  # load adds timeouts
    messages = [record.getMessage() for record in caplog.records if "restarting" in record.getMessage()]
    late = [message for message in messages if "did not answer within 1.5 s; it was at" in message]
    assert sum("in _inject_fault" in message for message in late) == 2 <= env.supervision.timeouts


@pytest.mark.slow
def test_several_faults_in_resets_and_steps_are_recovered(vector_env, undisturbed, tmp_path):
    faults = [{"seed": seed, "step": step, "kind": "kill"} for seed, step in ((20, -1), (20, 3), (22, 3))]
    env = vector_env(*faults, num_workers=2)
    assert play(env) == undisturbed
    assert play(env) == undisturbed  # later episodes
    assert env.supervision.restarts == len(fault_marks(tmp_path / "plan.json")) == 3


def test_a_process_killed_between_calls_is_recovered(vector_env, undisturbed):
    others = set(psutil.Process().children())
    env = vector_env(num_workers=1)
    given = play(env, CHUNKS[:2])
    [process] = set(psutil.Process().children()) - others
    process.kill()
    assert given + play(env, CHUNKS[2:], reset=False) == undisturbed
    assert env.supervision.restarts == 1


def test_all_calls_in_flight_in_a_process_are_retried(vector_env, undisturbed):
    env = vector_env({"seed": 20, "step": 4, "kind": "kill"}, {"seed": 22, "step": 4, "kind": "kill"}, num_workers=1)
    play(env, CHUNKS[:2])
    halves = ([0, 1], [2])
    for half in halves:
        env.step_async(CHUNKS[2][half], half)
    steps = [env.step_wait() for _ in halves]
    states = np.concatenate([step.observation["state"] for step in steps])
    assert states.tobytes() == undisturbed[1 + 2 * 3]
    assert env.supervision.restarts == 2
    assert play(env, CHUNKS[3:], reset=False) == undisturbed[1 + 3 * 3 :]


@pytest.mark.parametrize("step", [-1, 4])
def test_a_reset_queued_behind_a_step_is_retried(step, vector_env, undisturbed):
    """Check both that the process dies in the reset and that it dies in the step."""
    env = vector_env({"seed": 22 if step > 0 else 20, "step": step, "kind": "kill"}, num_workers=1)
    env.reset([1, 2], seeds=[21, 22])
    for actions in CHUNKS[:2]:
        env.step(actions[[1, 2]], [1, 2])
    env.step_async(CHUNKS[2][[1, 2]], [1, 2])
    env.reset_async([0], seeds=[20])
    states = env.step_wait().observation["state"]
    first = env.reset_wait()["state"]
    assert env.supervision.restarts == 1
    assert first.tobytes() == undisturbed[0][: first.nbytes]
    assert states.tobytes() == undisturbed[1 + 2 * 3][first.nbytes :]
    for actions in CHUNKS[:3]:
        states = env.step(actions[[0]], [0]).observation["state"]
    assert states.tobytes() == undisturbed[1 + 2 * 3][: first.nbytes]


@pytest.fixture
def two_faults_at_most(monkeypatch):
    """Set the limit to two faults, because each costs the start of a process."""
    monkeypatch.setattr("embodyflow.simulation.supervision.MAX_FAULTS", 2)


def test_an_episode_that_always_kills_its_process_is_named_and_others_continue(
    vector_env, undisturbed, two_faults_at_most
):
    env = vector_env({"seed": 22, "step": 3, "kind": "kill", "always": True})
    play(env, CHUNKS[:1])
    message = r"environment 2 \(c\), seed 22: killed, .* its process 2 times in a row; .* died, exit code -9"
    with pytest.raises(EnvQuarantinedError, match=message) as caught:
        env.step(CHUNKS[1][[1, 2]], [1, 2])
    assert caught.value.index == 2
    assert env.supervision.metrics()["perf/env_quarantined"].value == 1
    step = env.step(CHUNKS[1][[0]], [0])  # in the same process
    assert step.observation["state"].tobytes() == undisturbed[4][: step.observation["state"].nbytes]
    with pytest.raises(ValueError, match=r"environments \[1, 2\] are finished"):
        env.step(CHUNKS[1][1:], [1, 2])


def test_a_reset_that_always_kills_a_shared_process_is_named(vector_env, undisturbed, tmp_path, two_faults_at_most):
    env = vector_env({"seed": 22, "step": -1, "kind": "kill", "always": True}, num_workers=1)
    with pytest.raises(EnvQuarantinedError, match="environment 2") as caught:
        play(env)
    assert caught.value.index == 2
    assert env.supervision.restarts == 3  # the first fault had three suspects
    (tmp_path / "plan.json").write_text("{}")
    assert play(env) == undisturbed


@pytest.mark.parametrize(("kind", "num_workers"), [("nan", 0), ("nan reward", 1)])
def test_a_repeated_nan_is_an_error(kind, num_workers, vector_env):
    env = vector_env({"seed": 21, "step": 3, "kind": kind, "always": True}, num_workers=num_workers)
    what = "a reward" if kind == "nan reward" else "an observation 'state'"
    message = rf"environment 1 \(b\), seed 21: .* returned {what} that is not finite, also in a new process"
    with pytest.raises(EnvError, match=message):
        play(env)


def test_a_single_nan_is_recovered_in_the_calling_process_too(vector_env, undisturbed):
    env = vector_env({"seed": 21, "step": 3, "kind": "nan"}, num_workers=0)
    assert play(env) == undisturbed
    assert env.supervision.restarts == 1


def test_episodes_without_a_seed_are_lost_with_their_process(vector_env):
    env = vector_env({"seed": 22, "step": 0, "kind": "kill"})
    env.reset(seeds=[None, 21, 22])
    message = r"died, exit code -9; episodes reset without a seed are lost with it: environment 0 \(a\), seed None"
    with pytest.raises(EpisodesLostError, match=message):
        env.step(CHUNKS[0][[2]], [2])
    with pytest.raises(ValueError, match=r"environments \[0, 2\] are finished"):
        env.step(CHUNKS[0][[0, 2]], [0, 2])
    env.step(CHUNKS[0][[1]], [1])
    env.reset([0, 2], seeds=[20, 22])
    assert env.step(CHUNKS[0]).num_steps.tolist() == [2, 2, 2]


def test_a_broken_machine_is_an_error(vector_env):
    env = vector_env(rate=1.0, chunk_size=CHUNK, kinds=["kill"], most=99, max_restarts=2, num_workers=1)
    message = r"env\.max_restarts=2: environment processes failed more often; the last time environment process"
    with pytest.raises(InfrastructureError, match=message):
        play(env)
    assert env.supervision.restarts == 2


def test_environments_that_cannot_be_rebuilt_are_an_error(tmp_path, two_faults_at_most):
    class OnlyOnce(FaultyPendulum):
        def __init__(self, plan):
            super().__init__(plan)
            if fault_marks(Path(plan)):
                os._exit(3)

    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"faults": [{"seed": 20, "step": 0, "kind": "kill"}]}))
    with VectorEnv([partial(OnlyOnce, str(plan))], num_workers=1, chunk_size=CHUNK) as env:
        env.reset(seeds=[20])
        with pytest.raises(InfrastructureError, match=r"cannot be restarted: .* died, exit code 3"):
            env.step(CHUNKS[0][:1])
    with pytest.raises(EnvProcessDiedError, match="exit code 3"):
        VectorEnv([partial(OnlyOnce, str(plan))], num_workers=1, chunk_size=CHUNK)


def test_an_episode_that_its_seed_does_not_determine_is_an_error(tmp_path):
    class NotDeterministic(FaultyPendulum):
        def step(self, action):
            observation, reward, _, *rest = super().step(action)
            return observation, reward, len(fault_marks(self._path)) > 0, *rest

    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"faults": [{"seed": 20, "step": 3, "kind": "kill"}]}))
    with VectorEnv([partial(NotDeterministic, str(plan))] * 2, num_workers=1, chunk_size=CHUNK) as env:
        env.reset(seeds=[20, 21])
        env.step(CHUNKS[0][:2])
        with pytest.raises(EnvError, match="its seed and options do not determine it"):
            env.step(CHUNKS[1][:1], [0])
        with pytest.raises(EnvError, match=r"(?s)environment 1 failed.*its seed and options do not determine it"):
            env.reset([0], seeds=[20])
        env.reset(seeds=[20, 21])


def test_an_abandoned_call_leaves_no_answer_for_later(vector_env, undisturbed):
    env = vector_env({"seed": 21, "step": 0, "kind": "hang"})
    env.reset(seeds=SEEDS)
    env.step_async(CHUNKS[0][[0, 1]], [0, 1])
    began = time.monotonic()
    env.abandon()
    with pytest.raises(ValueError, match=r"environments \[0, 1\] are finished"):
        env.step(CHUNKS[0][:2], [0, 1])
    assert play(env) == undisturbed
    assert time.monotonic() - began < 20
    assert env.supervision.restarts == 0


SCRIPT = """
import functools, sys, numpy as np, psutil
from faulty_envs import FaultyPendulum
from embodyflow.simulation.vector.env import VectorEnv
env = VectorEnv([functools.partial(FaultyPendulum, sys.argv[1])], num_workers=1, chunk_size=1)
env.reset(seeds=[1])
env.step_async(np.zeros((1, 1, 1)))
print(psutil.Process().children()[0].pid, flush=True)
env.step_wait()
"""


def test_a_process_that_hangs_in_native_code_ends_with_its_caller(tmp_path):
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"faults": [{"seed": 1, "step": 0, "kind": "hang in native code"}]}))
    caller = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(plan)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    process = psutil.Process(int(caller.stdout.readline()))
    while not fault_marks(plan):
        time.sleep(0.05)
    caller.kill()
    caller.communicate()
    process.wait(timeout=10)
