"""The stream of groups with the files of a run: failures and new processes repeat what the ledger says."""

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from counting_run import begin, iterate, leave_flows
from streamed_run import BATCH, ITERATIONS, STALENESS, config_of, open_stream, row_of, train, versions_of

from embodyflow.data.streaming.swaps import Swap
from embodyflow.data.streaming.tickets import Selection, Ticket
from embodyflow.data.tables import Table, digest_of
from embodyflow.errors import ConfigError
from embodyflow.orchestration.run import recovery, training
from embodyflow.orchestration.run.streaming.generating_node import generating_node
from embodyflow.orchestration.run.streaming.room import Room
from embodyflow.record.run_folder import RunFolder
from pipelines import load_pipeline

PUBLISHED = ("rollout.order=first_ready", "rollout.interrupt.when=published")
ORDERS = {
    "by index": [],
    "first ready, drop": ["rollout.order=first_ready"],
    "first ready, wait": ["rollout.order=first_ready", "rollout.too_old=wait"],
    "interrupted, drop": [*PUBLISHED],
    "interrupted, wait": [*PUBLISHED, "rollout.too_old=wait"],
}


@pytest.fixture(autouse=True)
def outside_of_flows(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_flows(monkeypatch)
    monkeypatch.setattr(training, "run_iteration", iterate)


def selections_of(run: Any) -> dict[int, Selection]:
    lines = [entry for entry in run.stages.ledger.entries if entry.kind == "groups"]
    assert len({entry.iteration for entry in lines}) == len(lines), "a decision is made once"
    return {entry.iteration: Selection.of_facts(entry.iteration, entry.facts) for entry in lines}


def dictated(selections: dict[int, Selection]) -> str:
    """Return the digest of the weights that these selections lead to."""
    state: dict[str, Any] = {"updates": 0, "rows": ""}
    weights = [hashlib.sha256(json.dumps(state).encode()).hexdigest()]
    for index in range(1, ITERATIONS + 1):
        texts = []
        for ticket in selections[index].groups:
            versions = versions_of(ticket, selections[index].swaps.get(ticket, ()))
            texts.append(row_of(ticket, {seed: [weights[each] for each in row] for seed, row in versions.items()}))
        rows: Table = {"uid": np.arange(len(texts)), "text": np.array([list(text.encode()) for text in texts])}
        read = hashlib.sha256("".join([state["rows"], digest_of(rows)]).encode()).hexdigest()
        state = {"updates": index, "rows": read}
        weights.append(hashlib.sha256(json.dumps(state).encode()).hexdigest())
    return weights[-1]


def by_index() -> dict[int, Selection]:
    return {
        index: Selection(
            index,
            tuple(
                Ticket(group, 0, max(index - 1 - STALENESS, 0)) for group in range((index - 1) * BATCH, index * BATCH)
            ),
        )
        for index in range(1, ITERATIONS + 1)
    }


def assert_as_dictated(run: Any, digest: str, order: str) -> None:
    selections = selections_of(run)
    if order == "by index":
        assert not selections
        selections = by_index()
    for selection in selections.values():
        assert max(selection.staleness) <= STALENESS
        for ticket, swaps in selection.swaps.items():
            used = {version for row in versions_of(ticket, swaps).values() for version in row}
            assert used <= {*range(selection.iteration - 1 - STALENESS, selection.iteration)}
    if order.startswith("interrupted"):
        assert any(selection.swaps for selection in selections.values()), "no row has met newer weights"
    assert digest == dictated(selections)
    assert not run.folder.groups.path.exists(), "no rows of groups are left"


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("seed", range(3))
def test_the_weights_are_those_of_the_record(tmp_path: Path, order: str, seed: int) -> None:
    config = config_of(tmp_path, "straight", *ORDERS[order])
    run = open_stream(RunFolder.create(config), config, seed)
    digest = asyncio.run(train(run, None))
    assert_as_dictated(run, digest, order)
    dropped = sum(len(selection.dropped) for selection in selections_of(run).values())
    assert run.session.num_played == ITERATIONS * BATCH + dropped + len(run.rollouts._plays)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("seed", range(3))
def test_failures_change_nothing_that_is_recorded(tmp_path: Path, order: str, seed: int) -> None:
    config = config_of(tmp_path, "disturbed", *ORDERS[order])
    run = open_stream(RunFolder.create(config), config, seed)
    run.session.fails_at = {2, 9, 16}
    digest = asyncio.run(train(run, None))
    assert not run.session.fails_at
    assert_as_dictated(run, digest, order)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("damaged", [(), (4,)], ids=str)
def test_a_new_process_goes_on_as_the_ledger_says(tmp_path: Path, order: str, damaged: tuple[int, ...]) -> None:
    config = config_of(tmp_path, "killed", *ORDERS[order])
    folder = RunFolder.create(config)
    killed = open_stream(folder, config, 0)

    async def until_the_fifth() -> None:
        training_run = asyncio.create_task(train(killed, None))
        while killed.turns.last_finished < 4:
            await asyncio.sleep(0)
        training_run.cancel()
        await asyncio.gather(training_run, return_exceptions=True)
        await killed.rollouts.stop()
        await killed.stages.drain()

    asyncio.run(until_the_fifth())
    before = selections_of(killed)
    for iteration in damaged:
        (folder.checkpoints.folder(iteration) / "updates" / "0").write_text("70")
    run = open_stream(folder, config, 1)

    async def in_a_new_process() -> str:
        return await train(run, await recovery.restore(run))

    digest = asyncio.run(in_a_new_process())
    assert_as_dictated(run, digest, order)
    assert {index: selections_of(run).get(index) for index in before} == before


def test_a_group_takes_no_room_before_its_recorded_versions_are_published(tmp_path: Path) -> None:
    """It would wait on the worker, and the groups that its version is trained on would have no room."""
    config = config_of(tmp_path, "waiting", *PUBLISHED, "rollout.groups_in_flight=1", "rollout.num_workers=1")
    run = open_stream(RunFolder.create(config), config, 0)
    early, late = Ticket(0, 0, 0), Ticket(BATCH, 0, 0)

    async def fill() -> list[Ticket]:
        await begin(run)
        stream = run.rollouts
        await stream.start(0)
        await stream.stop()
        stream._room, stream._plays = Room(1, 1, STALENESS + 1), {}
        stream._wanted, stream._swaps = [late, early], {late: (Swap(6, 1, 1),)}
        stream._fill()
        started = list(stream._plays)
        await stream.stop()
        return started

    assert asyncio.run(fill()) == [early]


def test_rows_of_groups_that_a_buffer_lost_are_put_there_again(tmp_path: Path) -> None:
    config = config_of(tmp_path, "lost")
    run = open_stream(RunFolder.create(config), config, 0)
    run.session.loses_rows = {3}

    async def whole() -> str:
        return await train(run, None)

    digest = asyncio.run(whole())
    assert_as_dictated(run, digest, "by index")


# ---- room of workers


def test_a_worker_has_room_for_so_many_groups_and_versions() -> None:
    room = Room(num_workers=2, groups=2, versions=1)
    assert room.for_version(0) == 0
    room.enter(0, 0)
    assert room.for_version(0) == 1 and room.for_version(1) == 1
    room.enter(1, 1)
    assert room.for_version(0) == 0 and room.for_version(2) is None
    room.enter(0, 0)
    assert room.for_version(0) is None
    room.leave(1, 1)
    assert room.for_version(2) == 1


def test_a_worker_that_is_to_end_gets_no_further_group() -> None:
    room = Room(num_workers=2, groups=2, versions=1)
    room.enter(0, 0)
    room.enter(1, 0)
    room.close_from(1)
    assert room.for_version(0) == 0 and not room.is_empty_from(1)
    room.enter(0, 0)
    assert room.for_version(0) is None
    room.leave(1, 0)
    assert room.is_empty_from(1)
    room.open(1)
    assert room.for_version(0) is None
    room.open(3)
    assert room.for_version(0) == 1 and room.for_version(1) == 1


# ---- graphs


@pytest.mark.parametrize("name", ["grpo", "language_grpo", "ppo", "grpo_kl_reward"])
def test_graphs_with_one_generating_node_stream(name: str) -> None:
    assert generating_node(load_pipeline(name=name)) == "rollout"


@pytest.mark.parametrize(("name", "node_id"), [("dapo", "dynamic_sampling"), ("remax", "baseline")])
def test_graphs_that_play_further_rows_are_refused(name: str, node_id: str) -> None:
    with pytest.raises(ConfigError, match=f"rollout.mode=streaming: node '{node_id}' plays rows too; allowed are"):
        generating_node(load_pipeline(name=name))
