"""Tests that faults of environments do not change the rows of a rollout."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from embodyflow.config.composition.compose import compose_config
from embodyflow.data.batches import Columns
from embodyflow.data.rows_file import Journal
from embodyflow.data.tables import digest_of
from embodyflow.rollouts.control_rollout import ControlRollout
from embodyflow.rollouts.embodied.embodied_rollout import EmbodiedRollout
from embodyflow.rollouts.streaming.embodied_groups import EmbodiedGroups

pytestmark = pytest.mark.integration

DRAWS = (0, 1, "rollout")
CONTROL = [
    "experiment=reacher",
    "rollout.envs_per_worker=2",
    "rollout.num_steps=30",
    "env.max_steps=20",
]


def rollout_of(tiny_config, *words: str) -> EmbodiedRollout:
    torch.manual_seed(0)  # the weights
    return EmbodiedRollout(tiny_config("rollout.envs_per_worker=3", *words), 0, 1)


def faulty_rollout(tiny_config, plan: Path, *words: str) -> EmbodiedRollout:
    faulty = ("env.id=faulty_metaworld:FaultyMetaWorld-v0", f"+env.kwargs.plan={plan}", "rollout.env_processes=1")
    return rollout_of(tiny_config, *faulty, *words)


@pytest.fixture(scope="module")
def rollout(tiny_config) -> Iterator[EmbodiedRollout]:
    rollout = rollout_of(tiny_config)
    yield rollout
    rollout.close()


@pytest.fixture(scope="module")
def played(rollout: EmbodiedRollout) -> Columns:
    return rollout.play(rollout.training_episodes(0, 1), "train", DRAWS)


@pytest.mark.parametrize(
    ("env_processes", "pipelined"), [(1, True), pytest.param(3, False, marks=pytest.mark.slow), (3, True)]
)
def test_environment_processes_do_not_change_the_rows(
    tiny_config, played: Columns, env_processes: int, pipelined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check also that with pipelining half of the environments step while the policy acts."""
    rollout = rollout_of(tiny_config, f"rollout.env_processes={env_processes}", f"rollout.pipelined={pipelined}")
    env, act = rollout.env("train"), rollout.policy.act
    chunks, meanwhile = [0], []  # number of chunks in flight: after each call, and at each decision
    for name, change in (("step_async", 1), ("step_wait", -1)):
        call = getattr(env, name)
        monkeypatch.setattr(env, name, lambda *a, c=call, d=change: chunks.append(chunks[-1] + d) or c(*a))
    monkeypatch.setattr(rollout.policy, "act", lambda *a: meanwhile.append(chunks[-1]) or act(*a))
    rows = rollout.play(rollout.training_episodes(0, 1), "train", DRAWS)
    rollout.close()
    assert digest_of(rows) == digest_of(played)
    assert max(meanwhile) == int(pipelined)
    assert meanwhile.count(int(pipelined)) >= len(meanwhile) / 2


def counts(rollout: EmbodiedRollout) -> dict[str, float]:
    return {name.removeprefix("perf/env_"): metric.value for name, metric in rollout.fault_metrics().items()}


def test_faults_do_not_change_the_rows(tiny_config, rollout, played: Columns, tmp_path: Path) -> None:
    goals = played["goal"].tolist()
    faults = [
        {"seed": goals[0], "step": -1, "kind": "abort"},
        {"seed": goals[1], "step": 4, "kind": "nan"},
        {"seed": goals[3], "step": 12, "kind": "hang in native code"},
    ]
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"faults": faults}))
    faulty = faulty_rollout(tiny_config, plan, "env.step_timeout=2", "rollout.env_processes=3")
    rows = faulty.play(faulty.training_episodes(0, 1), "train", DRAWS)
    assert digest_of(rows) == digest_of(played)
    found = counts(faulty)
    assert found["restarts"] >= 3 and found["timeouts"] >= 1 and found["quarantined"] == 0  # load adds timeouts
    assert counts(faulty) == {"restarts": 0, "timeouts": 0, "memory_restarts": 0, "quarantined": 0}
    faulty.close()


def test_faults_do_not_change_the_rows_of_streamed_groups(tiny_config, played: Columns, tmp_path: Path) -> None:
    """Two groups are in flight, each with two processes: one of each dies or hangs."""
    goals = played["goal"].tolist()
    faults = [{"seed": goals[0], "step": 4, "kind": "kill"}, {"seed": goals[2], "step": 12, "kind": "hang"}]
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"faults": faults}))
    faulty = ("env.id=faulty_metaworld:FaultyMetaWorld-v0", f"+env.kwargs.plan={plan}", "env.step_timeout=2")
    streamed = ("rollout.mode=streaming", "rollout.envs_per_worker=4", "rollout.env_processes=4")
    torch.manual_seed(0)  # the weights
    groups = EmbodiedGroups(tiny_config(*faulty, *streamed), 0, 1)
    groups.begin()
    with ThreadPoolExecutor() as threads:
        play = partial(groups.play_group, 0, "rollout", attempt=0, journal=Journal(tmp_path / "0"), timeout=120)
        parts = list(threads.map(lambda index: play(index=index), (0, 1)))
    for name, column in played.items():
        assert np.concatenate([part[name] for part in parts]).tobytes() == column.tobytes(), name
    assert counts(groups)["restarts"] >= 2
    groups.close()


def test_a_leak_does_not_change_the_rows(tiny_config, played: Columns, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"faults": [{"seed": int(played["goal"][0]), "step": 8, "kind": "leak"}]}))
    leaky = faulty_rollout(tiny_config, plan, "env.max_memory_gb=0.8")
    assert digest_of(leaky.play(leaky.training_episodes(0, 1), "train", DRAWS)) == digest_of(played)
    found = counts(leaky)
    assert found["memory_restarts"] == 1 and found["quarantined"] == 0
    leaky.close()


def test_a_group_that_cannot_be_played_gets_another_goal(
    tiny_config, rollout, played: Columns, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch
) -> None:
    monkeypatch.setattr("embodyflow.simulation.supervision.MAX_FAULTS", 1)  # each fault costs the start of a process
    plan = tmp_path / "plan.json"
    first = int(played["goal"][0])
    plan.write_text(json.dumps({"faults": [{"seed": first, "step": 7, "kind": "kill", "always": True}]}))
    faulty = faulty_rollout(tiny_config, plan)
    episodes = faulty.training_episodes(0, 1)
    journal = Journal(tmp_path / "0.0.parts")
    rows = faulty.play(episodes, "train", DRAWS, journal)
    assert rows["goal"][0] == rows["goal"][1] != first
    for name in rows:
        assert np.array_equal(rows[name][2:], played[name][2:]), name
    expected = rollout.play([replace(episode, goal=int(rows["goal"][0])) for episode in episodes[:2]], "train", DRAWS)
    for name in rows:
        assert np.array_equal(rows[name][:2], expected[name]), name
    assert counts(faulty)["quarantined"] == 1
    assert f"environment 0 (reach-v3), seed {first}" in caplog.text and "group 2 gets another goal" in caplog.text
    again = faulty.play(episodes, "train", DRAWS, journal)  # as a replacement worker does
    faulty.close()
    for name in rows:
        assert np.array_equal(again[name], rows[name]), name


def collected(*words: str) -> Iterator[Columns]:
    """Yield the rows of two iterations of a control job; kill the environment processes in between."""
    torch.manual_seed(0)
    others = psutil.Process().children()  # such as a Prefect server for other tests
    engine = ControlRollout(compose_config([*CONTROL, *words]), 0, 2)
    try:
        yield engine.collect(1, (0, 1, "rollout"))[0]
        killed = [process.kill() for process in psutil.Process().children() if process not in others]
        yield engine.collect(2, (0, 2, "rollout"))[0]
        assert engine.fault_metrics()["perf/env_restarts"].value == len(killed) == len(words)
    finally:
        engine.close()


def test_a_process_that_dies_between_two_iterations_does_not_change_the_rows() -> None:
    undisturbed = [digest_of(rows) for rows in collected()]
    assert [digest_of(rows) for rows in collected("rollout.env_processes=1")] == undisturbed
