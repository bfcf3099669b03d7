"""Single groups on real engines: the rows of whole iterations, whichever groups are played beside them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from agent_jobs import interview_config
from agent_rollouts import play, rollout_of
from group_calls import Memory, call
from language_jobs import connected_trainer

from embodyflow.config.agents.agent import AgentJobConfig
from embodyflow.data.padding import to_padded
from embodyflow.data.plans.row_plan import ShardRef
from embodyflow.data.tables import digest_of
from embodyflow.rollouts.group_rollout import REROLL_STRIDE
from embodyflow.training.language_trainer import LanguageTrainer
from embodyflow.workers.rank.group_lanes import VersionLanes
from embodyflow.workers.rank.group_player import GroupPlayer

WORDS = ("rollout.num_groups=3", "rollout.group_size=2", "rollout.mode=streaming", "rollout.max_staleness=1")
CONFIG: AgentJobConfig = interview_config("look_up", *WORDS, "algorithm.old_log_probs=proximal")


@pytest.fixture(scope="module")
def trainer() -> Iterator[LanguageTrainer]:
    with connected_trainer(CONFIG) as trainer:
        yield trainer


@pytest.fixture
def memory(trainer: LanguageTrainer) -> Memory:
    return Memory(trainer.weights() | trainer.probe())


@pytest.fixture
def player(memory: Memory) -> Iterator[GroupPlayer]:
    player = GroupPlayer(CONFIG, memory)  # type: ignore[arg-type]
    yield player
    player.abandon(9)


def test_groups_are_those_of_the_iteration(
    player: GroupPlayer, memory: Memory, trainer: LanguageTrainer, tmp_path: Path
) -> None:
    with ThreadPoolExecutor() as threads:
        results = list(threads.map(player.play, [call(tmp_path, group) for group in (2, 0, 1)]))
    rollout = rollout_of(CONFIG, trainer)
    whole = play(rollout)
    rollout.close()

    assert memory.num_loads == 1 and all("perf/tool_retries" in result.metrics for result in results)
    for group in range(3):
        rows: Any = to_padded(memory.rows[f"stream/rollout/{group}.0.3"])
        for name, column in rows.items():
            expected = whole[name][2 * group : 2 * group + 2]
            width = tuple(slice(0, size) for size in column.shape)
            assert np.array_equal(expected[width], column), name


def test_another_draw_of_a_group_keeps_its_prompt(player: GroupPlayer, memory: Memory, tmp_path: Path) -> None:
    for attempt in (0, 1):
        player.play(call(tmp_path, 4, attempt))
    first, again = (memory.rows[f"stream/rollout/4.{attempt}.3"] for attempt in (0, 1))
    assert np.array_equal(first["prompt_id"], again["prompt_id"])
    assert np.array_equal(first["uid"] + REROLL_STRIDE, again["uid"]) and first["uid"].tolist() == [14, 15]
    assert np.array_equal(first["group_id"] + REROLL_STRIDE, again["group_id"]) and set(first["group_id"]) == {7}
    assert not np.array_equal(first["seed"], again["seed"])
    assert digest_of({"t": first["action_tokens"]}) != digest_of({"t": again["action_tokens"]})


def test_two_versions_play_side_by_side_and_a_third_waits_for_an_idle_engine(
    player: GroupPlayer, memory: Memory, tmp_path: Path
) -> None:
    with ThreadPoolExecutor() as threads:
        list(threads.map(player.play, [call(tmp_path, 0, version=3), call(tmp_path, 1, version=4)]))
    player.play(call(tmp_path, 2, version=5))
    versions = [set(memory.rows[f"stream/rollout/{g}.0.{v}"]["policy_version"]) for g, v in ((0, 3), (1, 4), (2, 5))]
    assert versions == [{3}, {4}, {5}] and memory.num_loads == 3
    lanes = cast(VersionLanes, player._lanes).lanes
    lanes[0].num_groups = lanes[1].num_groups = 1
    with pytest.raises(RuntimeError, match="2 versions of the policy play groups already"):
        player.play(call(tmp_path, 0, version=6))
    lanes[0].num_groups = lanes[1].num_groups = 0


def test_a_finished_group_is_read_from_disk(player: GroupPlayer, memory: Memory, tmp_path: Path) -> None:
    first = player.play(call(tmp_path, 0))
    again = GroupPlayer(CONFIG, memory).play(call(tmp_path, 0))  # type: ignore[arg-type]
    assert again.digest == first.digest and memory.num_loads == 1
    assert again.facts is not None and again.facts.group_id.tolist() == [3, 3]  # iterations count from 1


def test_abandoned_groups_end_and_others_follow(player: GroupPlayer, tmp_path: Path) -> None:
    with ThreadPoolExecutor() as threads:
        playing = threads.submit(player.play, call(tmp_path, 0))
        while not player._lanes.num_groups:
            pass
        player.abandon(2)
        assert isinstance(playing.exception(), RuntimeError)
    with pytest.raises(RuntimeError, match="group 0 was abandoned"):
        player.play(call(tmp_path, 0))
    assert player.play(call(tmp_path, 0, stream=2)).shard == ShardRef("stream/rollout/0.0.3", "here", 2)
