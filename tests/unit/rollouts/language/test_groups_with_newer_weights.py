"""Groups whose weights change while they are played: whose log-probs they have, and that their record repeats them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from agent_jobs import interview_config
from language_jobs import checkpoints_of, connected_trainer, language_config

from embodyflow.config.language import LanguageConfig
from embodyflow.data.batches import to_batch
from embodyflow.data.padding import to_padded
from embodyflow.data.plans.row_plan import ShardRef, WeightsRef
from embodyflow.data.streaming.swaps import Swap
from embodyflow.data.streaming.tickets import Ticket
from embodyflow.data.tables import Table
from embodyflow.generation.conversations.swapping import SwappingConversations
from embodyflow.rollouts.streaming.swap_journal import SwapJournal
from embodyflow.training.language_trainer import LanguageTrainer
from embodyflow.workers.calls import GroupCall, NodeResult
from embodyflow.workers.rank.group_player import GroupPlayer

VERSIONS = range(7)
STREAMED = (
    *("rollout.mode=streaming", "rollout.order=first_ready", "rollout.interrupt.when=published"),
    *(f"rollout.max_staleness={len(VERSIONS) - 1}", "algorithm.old_log_probs=proximal", "trainer.learning_rate=0.01"),
)
CONFIG = language_config(*STREAMED, "rollout.group_size=3")
KEPT = language_config(*STREAMED, "rollout.group_size=3", "rollout.interrupt.cache=keep")
AGENT: LanguageConfig = interview_config("look_up", *STREAMED)


@pytest.fixture(scope="module")
def trainer() -> Iterator[LanguageTrainer]:
    with connected_trainer(CONFIG) as trainer:
        yield trainer


@pytest.fixture(scope="module")
def checkpoints(trainer: LanguageTrainer, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return checkpoints_of(CONFIG, trainer, len(VERSIONS), tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="module")
def weights(trainer: LanguageTrainer, checkpoints: list[Path]) -> list[Table]:
    return weights_of(trainer, checkpoints)


@pytest.fixture(scope="module")
def agent_weights(tmp_path_factory: pytest.TempPathFactory) -> list[Table]:
    """Return weights of the agent's model, whose vocabulary is its own."""
    with connected_trainer(AGENT) as trainer:
        versions = []
        for _ in VERSIONS:
            columns = trainer.weights() | trainer.probe()
            versions.append({name: array.copy()[None] for name, array in columns.items()})
            with torch.no_grad():
                for parameter in trainer.policy.model.parameters():
                    parameter.mul_(1.1)
        return versions


def weights_of(trainer: LanguageTrainer, checkpoints: list[Path]) -> list[Table]:
    versions = []
    for folder in checkpoints:
        trainer.load(str(folder))
        columns = trainer.weights() | trainer.probe()
        versions.append({name: array.copy()[None] for name, array in columns.items()})
    return versions


class Memory:
    """A buffer in this process."""

    def __init__(self, weights: list[Table]) -> None:
        self.rows: dict[str, Table] = {}
        self._weights = weights

    def get_weights(self, weights: WeightsRef) -> dict[str, Any]:
        return {name: column[0] for name, column in self._weights[int(weights.own.shard_id)].items()}

    def put(self, shard_id: str, rows: Table) -> ShardRef:
        self.rows[shard_id] = rows
        return ShardRef(shard_id, "here", len(rows["uid"]))


def shards(*versions: int) -> dict[int, WeightsRef]:
    return {version: WeightsRef(ShardRef(str(version), "here", 1)) for version in versions}


def call(folder: Path, group: int, offered: dict[int, WeightsRef], swaps: tuple[Swap, ...] | None = None) -> GroupCall:
    folder.mkdir(exist_ok=True)
    place = str(folder / "stream" / "rollout" / str(group))
    return GroupCall("rollout", Ticket(group, 0, 0), 0, place, offered, len(VERSIONS), 1, 60.0, swaps)


@pytest.fixture
def every_few_steps(monkeypatch: pytest.MonkeyPatch) -> Callable[[GroupPlayer], None]:
    """Return a function that lets a player's groups meet a newer version after each three passes."""
    step = SwappingConversations.step

    def follow(player: GroupPlayer) -> None:
        steps = iter(range(1000))

        def step_and_publish(conversations: SwappingConversations) -> list[Any]:
            ended, newest = step(conversations), (next(steps) + 1) // 3
            if newest in VERSIONS:
                player._lanes.offer(shards(*range(newest + 1)))
            return ended

        monkeypatch.setattr(SwappingConversations, "step", step_and_publish)

    return follow


def play(config: LanguageConfig, weights: list[Table], calls: list[GroupCall], follow: Any = None) -> tuple[Any, Any]:
    """Play groups side by side with a new worker; return their rows and their swaps, by group."""
    memory = Memory(weights)
    player = GroupPlayer(config, memory)  # type: ignore[arg-type]
    if follow is not None:
        follow(player)
    with ThreadPoolExecutor() as threads:
        results: list[NodeResult] = list(threads.map(player.play, calls))
    player.abandon(9)
    rows = {each.ticket.group: memory.rows[each.shard_id] for each in calls}
    return rows, {each.ticket.group: result.info["swaps"] for each, result in zip(calls, results, strict=True)}


def assert_equal(left: Table, right: Table) -> None:
    left, right = to_padded(left), to_padded(right)  # type: ignore[assignment]
    assert left.keys() == right.keys()
    for name in left:
        assert np.array_equal(left[name], right[name]), name


@pytest.mark.parametrize("kind", ["recompute", "keep", "agent"])
def test_a_record_repeats_its_rows_bit_for_bit(
    kind: str, weights: list[Table], agent_weights: list[Table], tmp_path: Path, every_few_steps: Any, monkeypatch: Any
) -> None:
    config = {"recompute": CONFIG, "keep": KEPT, "agent": AGENT}[kind]
    weights = agent_weights if kind == "agent" else weights
    with monkeypatch.context():
        calls = [call(tmp_path / "first", group, shards(0)) for group in range(3)]
        rows, swaps = play(config, weights, calls, every_few_steps)
    assert all(swaps.values()) and max(len(np.unique(versions)) for versions in versions_of(rows[0])) >= 4
    monkeypatch.undo()
    everything = shards(*VERSIONS)
    for order in ((0, 1, 2), (2,), (1, 0)):  # whichever groups are beside
        again = tmp_path / f"again-{order}"
        repeated, same = play(config, weights, [call(again, group, everything, swaps[group]) for group in order])
        for group in order:
            assert_equal(rows[group], repeated[group])
            assert same[group] == swaps[group]


def versions_of(rows: Table) -> list[np.ndarray]:
    padded: Any = to_padded(rows)
    mask = padded["loss_mask"][..., 0].astype(bool)
    return [versions[inside] for versions, inside in zip(padded["token_version"][..., 0], mask, strict=True)]


def gaps(trainer: LanguageTrainer, checkpoints: list[Path], rows: Table) -> tuple[torch.Tensor, ...]:
    """Return how far tokens' log-probs are from those of a clean pass of their versions, mask and versions, [N, R]."""
    padded: Any = to_padded(rows)
    batch = to_batch(padded)
    mask, versions = batch["loss_mask"], batch["token_version"]
    differences = torch.zeros(mask.shape)
    for version, folder in enumerate(checkpoints):
        trainer.load(str(folder))
        own = mask & (versions == version)
        clean = trainer.log_probs(batch, reference=False)
        differences[own] = (clean - batch["log_probs"]).abs()[own]
    return differences[..., 0], mask[..., 0], versions[..., 0]


def test_recomputed_keys_and_values_give_the_log_probs_of_the_version(
    weights: list[Table], trainer: LanguageTrainer, checkpoints: list[Path], tmp_path: Path, every_few_steps: Any
) -> None:
    rows, _ = play(CONFIG, weights, [call(tmp_path, 0, shards(0))], every_few_steps)
    differences, mask, _ = gaps(trainer, checkpoints, rows[0])
    assert max(len(np.unique(each)) for each in versions_of(rows[0])) >= 6, "no response has five swaps"
    assert differences[mask].max() < 1e-5


def test_kept_keys_and_values_cost_exactness_after_the_first_swap_only(
    weights: list[Table], trainer: LanguageTrainer, checkpoints: list[Path], tmp_path: Path, every_few_steps: Any
) -> None:
    rows, _ = play(KEPT, weights, [call(tmp_path, 0, shards(0))], every_few_steps)
    differences, mask, versions = gaps(trainer, checkpoints, rows[0])
    first = versions == versions[:, :1]
    assert differences[mask & first].max() < 1e-5
    assert 1e-4 < differences[mask & ~first].max() < 1.0


def test_a_row_waits_for_a_version_that_its_record_names(
    weights: list[Table], tmp_path: Path, every_few_steps: Any, monkeypatch: Any
) -> None:
    rows, swaps = play(CONFIG, weights, [call(tmp_path / "first", 0, shards(0))], every_few_steps)
    monkeypatch.undo()
    memory = Memory(weights)
    player = GroupPlayer(CONFIG, memory)  # type: ignore[arg-type]
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(player.play, call(tmp_path / "again", 0, shards(0, 1), swaps[0]))
        with pytest.raises(TimeoutError):
            waiting.result(0.3)
        player.offer(shards(*VERSIONS))
        waiting.result(60)
    assert_equal(rows[0], memory.rows["stream/rollout/0.0.0"])
    player.abandon(9)


def test_a_new_worker_goes_on_after_the_recorded_swaps(
    weights: list[Table], tmp_path: Path, every_few_steps: Any, monkeypatch: Any
) -> None:
    _, swaps = play(CONFIG, weights, [call(tmp_path / "first", 0, shards(0))], every_few_steps)
    monkeypatch.undo()
    left = call(tmp_path / "lost", 0, shards(*VERSIONS)).swaps_path
    left.parent.mkdir(parents=True)
    known = [swap for swap in swaps[0] if swap.version <= 2]
    lines = [json.dumps({"first": 0, "is_complete": False}), *(json.dumps(list(each)) for each in known)]
    left.write_text("".join(line + "\n" for line in lines) + "[1, 2")  # the worker died in the middle of a line
    _, after = play(CONFIG, weights, [call(tmp_path / "lost", 0, shards(*VERSIONS))])
    assert set(known) < set(after[0])
    for seed in {swap.seed for swap in known}:
        mine = [swap for swap in after[0] if swap.seed == seed]
        assert mine[-1] == Swap(seed, mine[-2].token + 1, VERSIONS[-1]), "it is free after the last recorded swap"


def test_lost_groups_end_although_they_wait(weights: list[Table], tmp_path: Path) -> None:
    player = GroupPlayer(CONFIG, Memory(weights))  # type: ignore[arg-type]
    never = (Swap(0, 0, 0),)
    with ThreadPoolExecutor() as threads:
        calls = [replace(call(tmp_path, 0, shards(0)), swaps=never)]
        playing = [threads.submit(player.play, each) for each in calls]
        threading.Event().wait(0.1)
        player.abandon(2)
        assert all(isinstance(each.exception(), RuntimeError) or each.result() for each in playing)


# ---- the journal


def test_the_journal_of_swaps(tmp_path: Path) -> None:
    path = tmp_path / "stream" / "rollout" / "0" / "0.3.swaps.parts"
    journal = SwapJournal.create(path, 3, None)
    assert journal.recorded(7, 0) is None and journal.newest == 3
    journal.add(7, 0, 3)  # the version that the group begins with
    journal.add(7, 4, 4)
    journal.add(8, 0, 4)
    assert journal.swaps() == (Swap(7, 4, 4), Swap(8, 0, 4)) and journal.newest == 4
    again = SwapJournal.create(path, 3, None)
    assert [again.recorded(7, token) for token in (0, 3, 4, 5)] == [3, 3, 4, None]
    assert [again.recorded(8, token) for token in (0, 1)] == [4, None] and again.recorded(9, 0) is None
    complete = SwapJournal.create(path, 3, journal.swaps())
    assert [complete.recorded(7, token) for token in (0, 3, 4, 50)] == [3, 3, 4, 4]
    assert [complete.recorded(9, token) for token in (0, 50)] == [3, 3]
