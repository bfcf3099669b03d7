"""Environments that leak or flood the output: bounded, counted, and with the same results as ones that do not."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from leaky_envs import LEAK_BYTES, GrowingPendulum, LeakyPendulum, PrintingPendulum

from embodyflow.errors import ConfigError
from embodyflow.process.memory import private_bytes
from embodyflow.simulation import environment_output
from embodyflow.simulation.vector import shards
from embodyflow.simulation.vector.env import Supervision, VectorEnv

CHUNK = 2
ACTIONS = np.random.default_rng(0).uniform(-2, 2, (5, 2, CHUNK, 1)).astype(np.float32)
START_GB = 0.06
"""Upper bound of what a process of two pendulums needs."""


@pytest.fixture(autouse=True)
def _measure_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MEASURE_SECONDS", 0.0)


@pytest.fixture
def make() -> Iterator[Callable[..., VectorEnv]]:
    """A function that makes two environments in one process, with limits by keyword."""
    made = []

    def build(function: Callable[[], object], num_workers: int = 1, **limits: object) -> VectorEnv:
        supervision = Supervision(step_timeout=60.0, reset_timeout=60.0, **limits)  # type: ignore[arg-type]
        made.append(VectorEnv([function] * 2, num_workers=num_workers, chunk_size=CHUNK, supervision=supervision))  # type: ignore[list-item]
        return made[-1]

    yield build
    for env in made:
        env.close()


def play(env: VectorEnv, episode: int, chunks: np.ndarray = ACTIONS) -> list[bytes]:
    """Return the bytes of an episode's observations and rewards."""
    found = [env.reset(seeds=[episode, 100 + episode])["state"].tobytes()]
    for chunk in chunks:
        step = env.step(chunk)
        found += [step.observation["state"].tobytes(), step.rewards.tobytes()]
    return found


def play_in_halves(env: VectorEnv, chunks: np.ndarray = ACTIONS) -> list[bytes]:
    """Return the bytes of an episode whose environments take turns, as with ``rollout.pipelined``."""
    env.reset(seeds=[0, 100])
    env.step_async(chunks[0][:1], [0])
    found = []
    for t, chunk in enumerate(chunks):
        env.step_async(chunk[1:], [1])
        found.append(env.step_wait().observation["state"].tobytes())
        if t + 1 < len(chunks):
            env.step_async(chunks[t + 1][:1], [0])
        found.append(env.step_wait().observation["state"].tobytes())
    return found


def used_gb() -> float:
    return sum(private_bytes(child.pid) for child in psutil.Process().children()) / 1e9


def test_a_process_that_leaks_in_resets_is_restarted_between_episodes(make: Callable[..., VectorEnv]) -> None:
    limit = START_GB + 4 * LEAK_BYTES / 1e9
    leaky, still = make(LeakyPendulum, max_memory_gb=limit), make(PendulumEnv, num_workers=0)
    for episode in range(8):
        assert play(leaky, episode) == play(still, episode)
        assert used_gb() < limit + 2 * LEAK_BYTES / 1e9
    metrics = leaky.supervision.metrics()
    assert metrics["perf/env_memory_restarts"].value >= 2
    assert metrics["perf/env_restarts"].value == metrics["perf/env_quarantined"].value == 0


@pytest.mark.parametrize("played", [lambda env: play(env, 0), play_in_halves], ids=["together", "in_halves"])
def test_a_process_that_leaks_in_steps_is_restarted_within_an_episode(
    make: Callable[..., VectorEnv], played: Callable[[VectorEnv], list[bytes]]
) -> None:
    """The episodes of the process are replayed, which leaks again, but not what earlier episodes have leaked."""
    leaky = make(partial(LeakyPendulum, in_steps=True), max_memory_gb=START_GB + 25 * LEAK_BYTES / 1e9)
    expected = played(make(PendulumEnv, num_workers=0))
    play(leaky, 7, ACTIONS[:3])
    assert played(leaky) == expected
    assert leaky.supervision.memory_restarts >= 1 and leaky.supervision.restarts == 0


def test_a_call_that_grows_without_end_is_ended_and_repeated(make: Callable[..., VectorEnv], tmp_path: Path) -> None:
    expected = play(make(PendulumEnv, num_workers=0), 0)
    grows = make(partial(GrowingPendulum, tmp_path / "grows"), max_memory_gb=0.2)
    assert play(grows, 0) == expected
    assert (grows.supervision.memory_restarts, grows.supervision.restarts, grows.supervision.timeouts) == (1, 1, 0)


@pytest.mark.parametrize(
    ("seeds", "limits"), [(None, {}), ([1, 2], {"restores_episodes": False})], ids=["unseeded", "unrestorable"]
)
def test_a_process_whose_episodes_cannot_be_replayed_is_not_restarted_within_them(
    make: Callable[..., VectorEnv], seeds: list[int] | None, limits: dict[str, bool]
) -> None:
    leaky = make(partial(LeakyPendulum, in_steps=True), max_memory_gb=START_GB + 3 * LEAK_BYTES / 1e9, **limits)
    leaky.reset(seeds=seeds)
    for chunk in ACTIONS[:3]:
        leaky.step(chunk)
    assert leaky.supervision.memory_restarts == 0
    leaky.reset(seeds=[3, 4])  # their episodes end here
    assert leaky.supervision.memory_restarts == 1


def test_a_limit_below_what_the_environments_need_is_one_line(make: Callable[..., VectorEnv]) -> None:
    line = r"^env\.max_memory_gb=0\.01: must be more than what 2 environments need .* uses 0\.0\d GB, .*[^\n]*$"
    with pytest.raises(ConfigError, match=line):
        make(LeakyPendulum, max_memory_gb=0.01)
    episode = make(partial(LeakyPendulum, in_steps=True), max_memory_gb=START_GB + 10 * LEAK_BYTES / 1e9)
    with pytest.raises(ConfigError, match=r"^env\.max_memory_gb=0\.16: .* and the replay of their episodes"):
        play(episode, 0)


def test_prints_of_a_process_are_limited_over_its_restarts(
    make: Callable[..., VectorEnv], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environment_output, "OUTPUT_BYTES", 300_000)
    env = make(PrintingPendulum)
    play(env, 0, ACTIONS[:1])
    first = capfd.readouterr()
    assert (first.out, first.err.count("p"), first.err.count("d")) == ("", 80_000, 80_000)
    psutil.Process().children()[0].kill()
    play(env, 1)
    env.close()
    rest = capfd.readouterr()
    assert rest.out == "" and rest.err.count("p") + rest.err.count("d") < 140_000
    assert len(re.findall("environment process 0 printed more than 0.3 MB; the rest", rest.err)) == 1


def test_prints_in_the_calling_process_are_limited(
    make: Callable[..., VectorEnv], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environment_output, "OUTPUT_BYTES", 50_000)
    env = make(PrintingPendulum, num_workers=0)
    play(env, 0)
    print("the caller prints on")
    printed = capsys.readouterr()
    assert 49_000 <= 100 * (printed.out + printed.err).count("p" * 100) <= 50_000
    assert (printed.out + printed.err).count("printed more than 0.05 MB") == 1
    assert printed.out.endswith("the caller prints on\n")
