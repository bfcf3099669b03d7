"""Episodes whose weights change between decisions: whose log-probs they have, and that their record repeats them."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embodyflow.config import RunConfig
from embodyflow.data.batches import to_batch
from embodyflow.data.metrics import Metric
from embodyflow.data.plans.row_plan import ShardRef, WeightsRef
from embodyflow.data.streaming.swaps import Swap
from embodyflow.data.streaming.tickets import Ticket
from embodyflow.data.tables import Table
from embodyflow.rollouts.embodied.embodied_rollout import EmbodiedRollout
from embodyflow.rollouts.streaming.shared_decisions import SharedDecisions
from embodyflow.workers.calls import GroupCall
from embodyflow.workers.rank.group_player import GroupPlayer
from tasks.log_probs import staleness_metrics

VERSIONS = range(4)
WORDS = (
    *("rollout.mode=streaming", "rollout.order=first_ready", "rollout.interrupt.when=published"),
    *(f"rollout.max_staleness={len(VERSIONS) - 1}", "algorithm.old_log_probs=proximal", "env.max_steps=30"),
    *("rollout.num_groups=3", "rollout.group_size=2", "rollout.envs_per_worker=4"),
)


@pytest.fixture(scope="module")
def config(tiny_config: Any) -> Any:
    return tiny_config(*WORDS)


@pytest.fixture(scope="module")
def rollout(config: Any) -> Iterator[EmbodiedRollout]:
    torch.manual_seed(0)  # the weights
    rollout = EmbodiedRollout(config, 0, 1)
    yield rollout
    rollout.close()


@pytest.fixture(scope="module")
def weights(rollout: EmbodiedRollout) -> list[dict[str, np.ndarray]]:
    first = {name: value.numpy().copy() for name, value in rollout.policy.model.state_dict().items()}
    changes = {name: value * np.isfinite(value) for name, value in first.items()}
    return [{name: value + 0.1 * version * changes[name] for name, value in first.items()} for version in VERSIONS]


class Worker:
    """A new rollout worker."""

    def __init__(self, config: RunConfig, weights: Sequence[dict[str, np.ndarray]]) -> None:
        self.rows: dict[int, Any] = {}
        self.swaps: dict[int, tuple[Swap, ...]] = {}
        self._weights = weights
        self.player = GroupPlayer(config, self)  # type: ignore[arg-type]

    def get_weights(self, weights: WeightsRef) -> dict[str, np.ndarray]:
        return self._weights[int(weights.own.shard_id)]

    def put(self, shard_id: str, rows: Table) -> ShardRef:
        self.rows[int(shard_id.split("/")[-1].split(".")[0])] = rows
        return ShardRef(shard_id, "here", len(rows["uid"]))

    def offer(self, *versions: int) -> None:
        self.player._lanes.offer(shards(*versions))

    def play(
        self,
        folder: Path,
        groups: Sequence[int],
        offered: Sequence[int],
        swaps: dict[int, tuple[Swap, ...]] | None,
        at_a_time: int = 2,
    ) -> None:
        folder.mkdir(exist_ok=True)
        with ThreadPoolExecutor(at_a_time) as threads:
            calls = [call(folder, group, offered, None if swaps is None else swaps[group]) for group in groups]
            for group, result in zip(groups, threads.map(self.player.play, calls), strict=True):
                self.swaps[group] = result.info["swaps"]
        self.player.abandon(9)
        self.player._lanes._lane.engine.close()  # type: ignore[attr-defined]


def shards(*versions: int) -> dict[int, WeightsRef]:
    return {version: WeightsRef(ShardRef(str(version), "here", 1)) for version in versions}


def call(folder: Path, group: int, offered: Sequence[int], swaps: tuple[Swap, ...] | None) -> GroupCall:
    place = str(folder / "stream" / "rollout" / str(group))
    return GroupCall("rollout", Ticket(group, 0, 0), 0, place, shards(*offered), len(VERSIONS), 1, 60.0, swaps)


Publish = Callable[[Worker], None]


@pytest.fixture
def publish(monkeypatch: pytest.MonkeyPatch) -> Publish:
    """Return a function that lets a worker's groups meet a newer version after each two decisions."""
    decide, calls, lock = SharedDecisions.decide, iter(range(1000)), threading.Lock()

    def follow(worker: Worker) -> None:
        def decide_and_publish(decisions: SharedDecisions, *arguments: Any) -> Any:
            decision = decide(decisions, *arguments)
            with lock:
                newest = min((next(calls) + 1) // 2, VERSIONS[-1])
                worker.offer(*range(newest + 1))
            return decision

        monkeypatch.setattr(SharedDecisions, "decide", decide_and_publish)

    return follow


@pytest.fixture
def first(config: RunConfig, weights: list[Any], tmp_path: Path, publish: Publish, monkeypatch: Any) -> Worker:
    worker = Worker(config, weights)
    publish(worker)
    worker.play(tmp_path / "first", (0, 1), (0,), None, at_a_time=1)
    monkeypatch.undo()
    return worker


def test_a_record_repeats_its_rows_bit_for_bit(
    first: Worker, config: RunConfig, weights: list[Any], tmp_path: Path
) -> None:
    assert first.rows[0]["token_version"][..., 0].tolist() == [[0, 0, 1, 1, 2, 2]] * 2
    for groups in ((1,), (1, 0)):  # whichever groups are beside
        again = Worker(config, weights)
        again.play(tmp_path / f"again-{len(groups)}", groups, VERSIONS, first.swaps)
        for group in groups:
            assert_equal(again.rows[group], first.rows[group])
            assert again.swaps[group] == first.swaps[group]


def assert_equal(found: Table, expected: Table) -> None:
    assert found.keys() == expected.keys()
    for name, column in expected.items():
        assert np.asarray(found[name]).tobytes() == np.asarray(column).tobytes(), name


def test_a_decision_has_the_log_probs_of_its_version(
    first: Worker, rollout: EmbodiedRollout, weights: list[Any]
) -> None:
    rows = first.rows[0]
    mask, versions = rows["loss_mask"], np.broadcast_to(rows["token_version"], rows["loss_mask"].shape)
    for version in VERSIONS:
        rollout.update_weights(weights[version], version)
        with torch.no_grad():
            clean, _ = rollout.policy.evaluate(to_batch(rows), rollout.config.rollout.temperature)
        own = mask & (versions == version)
        assert np.abs(clean.numpy() - rows["log_probs"])[own].max(initial=0) < 1e-5
    assert rows["policy_version"].tolist() == rows["token_version"][:, 0, 0].tolist()


def test_a_new_worker_goes_on_after_the_record_of_the_lost_one(
    first: Worker, config: RunConfig, weights: list[Any], tmp_path: Path
) -> None:
    """The kill came after the first sibling's change was written, so that the siblings have two versions for a turn."""
    [journal] = (tmp_path / "first" / "stream" / "rollout" / "0").glob("*.swaps.parts")
    head, *lines = journal.read_text().splitlines(keepends=True)
    copy = tmp_path / "next" / "stream" / "rollout" / "0" / journal.name
    copy.parent.mkdir(parents=True)
    copy.write_text(head + lines[0])
    seed, token, version = json.loads(lines[0])
    worker = Worker(config, weights)
    worker.play(tmp_path / "next", (0,), VERSIONS, None)
    rows, before = worker.rows[0], first.rows[0]
    row = rows["seed"].tolist().index(seed)
    versions = rows["token_version"][..., 0]
    assert versions[row].tolist() == [0, 0, 1, 3, 3, 3] and (token, version) == (2, 1)
    assert versions[1 - row].tolist() == [3] * 6, "nothing is on record for it"
    for name in ("action_tokens", "log_probs", "state"):
        assert np.array_equal(rows[name][row, : token + 1], before[name][row, : token + 1]), name


def test_a_record_waits_for_a_version_that_is_trained_again(
    first: Worker, config: RunConfig, weights: list[Any], tmp_path: Path
) -> None:
    worker = Worker(config, weights)
    with ThreadPoolExecutor() as threads:
        playing = threads.submit(worker.play, tmp_path / "early", (0,), (0,), first.swaps)
        while not worker.player._lanes.num_groups:
            pass
        for version in VERSIONS:
            assert version < max(swap.version for swap in first.swaps[0]) or not playing.done()
            worker.offer(*range(version + 1))
        playing.result()
    assert_equal(worker.rows[0], first.rows[0])


def test_the_trainer_measures_the_staleness_of_decisions(first: Worker) -> None:
    rows = first.rows[0]
    mask = rows["loss_mask"]
    ages = np.broadcast_to(5 - rows["token_version"], mask.shape)[mask]
    found: dict[str, Metric] = staleness_metrics(to_batch(rows), 5)
    assert found["policy/staleness_mean"].value == pytest.approx(ages.mean())
    assert found["policy/staleness_max"].value == ages.max() == 5
