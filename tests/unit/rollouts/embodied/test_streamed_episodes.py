"""Single groups of episodes in real environments: the rows of whole iterations, whichever groups are played beside."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from group_calls import Memory, call
from mixed_words import LINE, SPACE, mixed_words
from waiting import eventually

from embodyflow.config import RunConfig
from embodyflow.config.composition.compose import compose_config
from embodyflow.data.batches import Columns
from embodyflow.data.rows_file import Journal
from embodyflow.environments.metaworld import MetaWorldEnv
from embodyflow.errors import NodeTimeoutError
from embodyflow.policies.base import Decision
from embodyflow.rollouts.embodied.embodied_rollout import EmbodiedRollout, GroupQuarantinedError
from embodyflow.rollouts.group_rollout import REROLL_STRIDE
from embodyflow.rollouts.streaming.embodied_groups import EmbodiedGroups
from embodyflow.rollouts.streaming.shared_decisions import SharedDecisions
from embodyflow.simulation.vector.env import EnvError
from embodyflow.workers.rank.group_lanes import VersionLanes
from embodyflow.workers.rank.group_player import GroupPlayer

WORDS = (
    *("rollout.mode=streaming", "rollout.max_staleness=1", "algorithm.old_log_probs=proximal"),
    *("rollout.num_groups=3", "rollout.group_size=2", "rollout.envs_per_worker=4"),
)

NewPlayer = Callable[[RunConfig], GroupPlayer]


@pytest.fixture(scope="module")
def config(tiny_config: Any) -> Any:
    return tiny_config(*WORDS)


@pytest.fixture(scope="module")
def whole(config: Any) -> Iterator[EmbodiedRollout]:
    torch.manual_seed(0)  # the weights
    rollout = EmbodiedRollout(config, 0, 1)
    rollout.policy_version = 3
    yield rollout
    rollout.close()


@pytest.fixture
def memory(whole: EmbodiedRollout) -> Memory:
    return Memory({name: value.numpy() for name, value in whole.policy.model.state_dict().items()})


@pytest.fixture
def new_player(memory: Memory) -> Iterator[NewPlayer]:
    players: list[GroupPlayer] = []

    def build(config: RunConfig) -> GroupPlayer:
        players.append(GroupPlayer(config, memory))  # type: ignore[arg-type]
        return players[-1]

    yield build
    for player in players:
        player.abandon(9)
        for lane in lanes_of(player)[:1]:  # the others share its environments
            lane.engine.close()


def lanes_of(player: GroupPlayer) -> list[Any]:
    return list(cast(VersionLanes, player._lanes).lanes)


@pytest.mark.parametrize("words", [(), ("rollout.env_processes=4",)], ids=["groups", "episodes apart"])
def test_groups_are_those_of_the_iteration_to_the_last_bit(
    new_player: NewPlayer,
    tiny_config: Any,
    memory: Memory,
    whole: EmbodiedRollout,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
) -> None:
    without_processes(monkeypatch)
    player = new_player(tiny_config(*WORDS, *words))
    with ThreadPoolExecutor() as threads:
        results = list(threads.map(player.play, [call(tmp_path, group) for group in (2, 0, 4, 1)]))
    assert all(result.metrics["perf/env_restarts"].value == 0 for result in results)
    for iteration, groups in ((1, (0, 1, 2)), (2, (4,))):
        rows = whole.play(whole.training_episodes(0, iteration), "train", (0, iteration, "rollout"))
        for group in groups:
            place = group % 3
            expected = {name: column[2 * place : 2 * place + 2] for name, column in rows.items()}
            assert_equal(cast(Columns, memory.rows[f"stream/rollout/{group}.0.3"]), expected)


def test_groups_of_members_are_those_of_the_iteration(tmp_path: Path) -> None:
    """Groups of two kinds of environments, whose states and actions are padded."""
    config = compose_config(mixed_words(LINE, SPACE, *WORDS[:3]))
    torch.manual_seed(0)  # the weights
    whole = EmbodiedRollout(config, 0, 1)
    whole.policy_version = 3
    memory = Memory({name: value.numpy() for name, value in whole.policy.model.state_dict().items()})
    player = GroupPlayer(config, memory)  # type: ignore[arg-type]
    with ThreadPoolExecutor() as threads:
        list(threads.map(player.play, [call(tmp_path, group) for group in (1, 2, 0, 3)]))
    rows = whole.play(whole.training_episodes(0, 1), "train", (0, 1, "rollout"))
    assert rows["env_task_id"].tolist() == [0] * 4 + [1] * 4 + [0] * 4 + [1] * 4
    for group in range(4):
        expected = {name: column[4 * group : 4 * group + 4] for name, column in rows.items()}
        assert_equal(cast(Columns, memory.rows[f"stream/rollout/{group}.0.3"]), expected)
    lanes_of(player)[0].engine.close()
    whole.close()


def assert_equal(found: Columns, expected: Columns) -> None:
    assert found.keys() == expected.keys()
    for name, column in expected.items():
        assert found[name].dtype == column.dtype and found[name].tobytes() == column.tobytes(), name


def test_another_draw_of_a_group_keeps_its_goal(
    new_player: NewPlayer, config: RunConfig, memory: Memory, tmp_path: Path
) -> None:
    player = new_player(config)
    for attempt in (0, 1):
        player.play(call(tmp_path, 4, attempt))
    first, again = (cast(Columns, memory.rows[f"stream/rollout/4.{attempt}.3"]) for attempt in (0, 1))
    assert np.array_equal(first["goal"], again["goal"]) and first["uid"].tolist() == [14, 15]
    assert np.array_equal(first["uid"] + REROLL_STRIDE, again["uid"])
    assert not set(first["seed"]) & set(again["seed"])
    assert (first["action_tokens"] != again["action_tokens"]).any()


def test_a_slow_group_holds_up_no_other(
    new_player: NewPlayer, config: RunConfig, memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two groups are in flight at a time: while the first waits, the others follow each other in the second place."""
    others_are_done, ended = threading.Event(), list[int]()
    waits = let_the_first_reset_wait(monkeypatch, others_are_done)
    player = new_player(config)

    def play(group: int) -> None:
        player.play(call(tmp_path, group))
        ended.append(group)

    with ThreadPoolExecutor() as threads:
        slow = threads.submit(play, 0)
        assert waits.wait(60)
        for group in (1, 2, 3):
            threads.submit(play, group).result()
        assert not slow.done()
        others_are_done.set()
        slow.result()
    assert ended == [1, 2, 3, 0]
    sets = lanes_of(player)[0].engine._sets
    assert sets.num_sets == 2 == len(sets._idle), "later groups play in the environments of earlier ones"


def test_a_slow_episode_holds_up_no_sibling(
    new_player: NewPlayer, tiny_config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sibling ends, and other groups go on in the environment of that."""
    config = tiny_config(*WORDS, "rollout.env_processes=4")  # its check may be what resets an environment first
    others_are_done = threading.Event()
    waits = let_the_first_reset_wait(monkeypatch, others_are_done)
    without_processes(monkeypatch)
    player = new_player(config)
    with ThreadPoolExecutor() as threads:
        slow = threads.submit(player.play, call(tmp_path, 0))
        assert waits.wait(60)
        list(threads.map(player.play, [call(tmp_path, 1), call(tmp_path, 2)]))
        sets = lanes_of(player)[0].engine._sets
        assert eventually(lambda: (sets.num_sets, len(sets._idle)) == (4, 3), 60), "only one episode is not over"
        assert not slow.done()
        others_are_done.set()
        slow.result()


def without_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Step all environments in threads, whatever the configuration says."""
    build = EmbodiedGroups._build_envs
    monkeypatch.setattr(EmbodiedGroups, "_build_envs", lambda self, split, tasks, _: build(self, split, tasks, 0))


def test_an_error_of_an_episode_ends_its_siblings(
    new_player: NewPlayer, tiny_config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(*WORDS, "rollout.env_processes=4")  # its check may be what steps an environment first
    step, fails, steps = MetaWorldEnv.step, threading.Event(), list[int]()

    def fail_once(env: MetaWorldEnv, action: Any) -> Any:
        steps.append(1)
        if not fails.is_set():
            fails.set()
            raise FloatingPointError("planted")
        return step(env, action)

    monkeypatch.setattr(MetaWorldEnv, "step", fail_once)
    without_processes(monkeypatch)
    player = new_player(config)
    with pytest.raises(EnvError, match="planted"):
        player.play(call(tmp_path, 0))
    assert len(steps) < config.env.max_steps
    assert player.play(call(tmp_path, 0)).shard is not None, "its environments are free again"


def test_siblings_get_the_same_other_goal(tiny_config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second sibling cannot be played with the first goal of the group."""
    attempt = EmbodiedGroups._attempt
    config = tiny_config(*WORDS, "rollout.env_processes=4")
    without_processes(monkeypatch)
    engine = EmbodiedGroups(config, 0, 1)
    engine.begin()
    goals = [episode.goal for episode in engine.training_episodes(0, 1)]

    def refuse_the_first_goal(self: EmbodiedGroups, stage: Any, decide: Any, episodes: Any, *arguments: Any) -> Any:
        if (episodes[0].row, episodes[0].goal) == (1, goals[1]):
            raise GroupQuarantinedError(episodes[0].group_id, "planted")
        return attempt(self, stage, decide, episodes, *arguments)

    monkeypatch.setattr(EmbodiedGroups, "_attempt", refuse_the_first_goal)
    rows = engine.play_group(0, "rollout", 0, 0, Journal(tmp_path / "0"), 60.0)
    engine.close()
    assert rows["goal"][0] == rows["goal"][1] != goals[0] and rows["num_steps"].all()


def let_the_first_reset_wait(monkeypatch: pytest.MonkeyPatch, event: threading.Event) -> threading.Event:
    """Let the first reset of all wait for an event; return the event that it waits now."""
    reset, waits, lock = MetaWorldEnv.reset, threading.Event(), threading.Lock()

    def reset_slowly(env: MetaWorldEnv, **kwargs: Any) -> Any:
        with lock:
            is_first = not waits.is_set()
            waits.set()
        assert not is_first or event.wait(60)
        return reset(env, **kwargs)

    monkeypatch.setattr(MetaWorldEnv, "reset", reset_slowly)
    return waits


def test_versions_share_environments_and_stamp_their_rows(
    new_player: NewPlayer, config: RunConfig, memory: Memory, tmp_path: Path
) -> None:
    player = new_player(config)
    with ThreadPoolExecutor() as threads:
        list(threads.map(player.play, [call(tmp_path, 0, version=3), call(tmp_path, 1, version=4)]))
    player.play(call(tmp_path, 2, version=5))
    for group, version in ((0, 3), (1, 4), (2, 5)):
        assert set(np.asarray(memory.rows[f"stream/rollout/{group}.0.{version}"]["policy_version"])) == {version}
    first, second = (lane.engine for lane in lanes_of(player))
    assert first._sets is second._sets and first.policy is not second.policy
    assert memory.num_loads == 3


def test_a_lost_workers_successor_plays_the_same_rows(
    new_player: NewPlayer, config: RunConfig, memory: Memory, tmp_path: Path
) -> None:
    (tmp_path / "lost").mkdir()
    first = new_player(config).play(call(tmp_path / "lost", 1))
    successor = new_player(config)
    with ThreadPoolExecutor() as threads:
        again, _ = threads.map(successor.play, [call(tmp_path, 1), call(tmp_path, 2)])
    assert again.digest == first.digest
    from_disk = new_player(config).play(call(tmp_path, 1))
    assert from_disk.digest == first.digest and memory.num_loads == 2


def test_groups_of_other_tasks_replace_idle_environments(
    new_player: NewPlayer, tiny_config: Any, memory: Memory, tmp_path: Path
) -> None:
    config = tiny_config(*WORDS, "env.tasks=[reach-v3,push-v3,pick-place-v3]", "rollout.groups_in_flight=1")
    player = new_player(config)
    for group in (0, 1, 2, 0):
        player.play(call(tmp_path, group, attempt=1 if group == 0 and memory.rows else 0))
    tasks = {shard: set(np.asarray(rows["env_task_id"])) for shard, rows in memory.rows.items()}
    assert [tasks[f"stream/rollout/{name}.3"] for name in ("0.0", "1.0", "2.0", "0.1")] == [{0}, {1}, {2}, {0}]
    assert lanes_of(player)[0].engine._sets.num_sets == 1


def test_abandoned_groups_end_at_their_next_decision(
    new_player: NewPlayer, config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = threading.Event()
    waits = let_the_first_reset_wait(monkeypatch, event)
    player = new_player(config)
    with ThreadPoolExecutor() as threads:
        playing = threads.submit(player.play, call(tmp_path, 0))
        assert waits.wait(60)
        abandoning = threads.submit(player.abandon, 2)
        while player._stream < 2:
            pass
        event.set()
        abandoning.result()
        with pytest.raises(RuntimeError, match="the group was cancelled"):
            playing.result()
    assert player.play(call(tmp_path, 0, stream=2)).shard is not None


def test_a_group_has_a_time_limit(new_player: NewPlayer, config: RunConfig, tmp_path: Path) -> None:
    player = new_player(config)
    with pytest.raises(NodeTimeoutError, match=r"group 0 took longer than 0\.001 s"):
        player.play(replace(call(tmp_path, 0), timeout=0.001))
    assert player.play(call(tmp_path, 0)).shard is not None, "its environments are free again"


@pytest.mark.parametrize(
    ("words", "expected", "groups"),
    [
        ((), ([0, 0], 0), 2),
        (("rollout.env_processes=3",), ([0, 0], 1), 2),
        (("rollout.env_processes=4",), ([0], 1), 3),
        (("rollout.env_processes=4", "rollout.groups_in_flight=2"), ([0], 1), 2),
    ],
)
def test_environments_of_a_process_take_their_turns_together(
    tiny_config: Any, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], expected: tuple[Any, ...], groups: int
) -> None:
    built, config = list[Any](), tiny_config(*WORDS, *words)
    monkeypatch.setattr(EmbodiedGroups, "_build_envs", lambda _, *arguments: built.append(arguments))
    engine = EmbodiedGroups(config, 0, 1)
    engine._build_set(0)
    engine.close()
    assert built == [("train", *expected)] and config.rollout.most_groups_in_flight == groups


def test_threads_that_wait_share_a_batch() -> None:
    """While the policy acts for the first thread, three wait: two fit into the next batch of five rows."""
    sizes = list[int]()

    def act(observation: Any, noise: np.ndarray) -> Decision:
        while not sizes and len(decisions._queue) < 3:
            pass
        sizes.append(len(noise))
        return Decision(noise + 1, observation["state"], noise[:, None])

    decisions = SharedDecisions(act, batch_size=5)

    def ask(number: int) -> None:
        rows = np.full((2, 1), number, np.float32)
        decision = decisions.decide({"state": 10 * rows}, rows)
        assert (decision.tokens == number + 1).all() and (decision.log_probs == 10 * number).all()

    with ThreadPoolExecutor() as threads:
        list(threads.map(ask, range(4)))
    assert sizes == [2, 4, 2]


def test_an_error_of_the_policy_reaches_all_that_wait() -> None:
    def act(observation: Any, noise: np.ndarray) -> Decision:
        raise FloatingPointError("planted")

    decisions = SharedDecisions(act, batch_size=4)
    rows = np.zeros((2, 1), np.float32)
    with ThreadPoolExecutor() as threads:
        asked = [threads.submit(decisions.decide, {"state": rows}, rows) for _ in range(3)]
    assert all(isinstance(each.exception(), FloatingPointError) for each in asked)
