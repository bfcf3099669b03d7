"""The stream of groups with the files of a run: failures and new processes repeat what the ledger says."""

import asyncio
import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from counting_run import Ranks, begin, iterate, leave_flows, run_after, run_in
from language_jobs import language_config

from embodyflow.config.language import LanguageConfig
from embodyflow.data.row_plan import RowFacts, ShardRef
from embodyflow.data.rows_file import write_rows
from embodyflow.data.swaps import Swap, SwapJournal
from embodyflow.data.tables import Table, digest_of
from embodyflow.data.tickets import Selection, Ticket
from embodyflow.errors import ConfigError, ShardLostError, WorkerLostError
from embodyflow.orchestration.run import recovery, training
from embodyflow.orchestration.run.streaming.generating_node import generating_node
from embodyflow.orchestration.run.streaming.room import Room
from embodyflow.orchestration.run.streaming.stream import Stream
from embodyflow.record.run_folder import RunFolder
from embodyflow.workers.calls import NodeReport, NodeResult, NodeWork
from pipelines import load_pipeline

ITERATIONS, BATCH, STALENESS = 6, 3, 2
TOKENS, SIBLINGS = 4, 2
PUBLISHED = ("rollout.order=first_ready", "rollout.interrupt.when=published")
LOST = WorkerLostError("a worker of the rollout group is gone")
ORDERS = {
    "by index": [],
    "first ready, drop": ["rollout.order=first_ready"],
    "first ready, wait": ["rollout.order=first_ready", "rollout.too_old=wait"],
    "interrupted, drop": [*PUBLISHED],
    "interrupted, wait": [*PUBLISHED, "rollout.too_old=wait"],
}


class GroupRanks(Ranks):
    """A session whose ranks play groups in random times; a group's rows depend on its name and its weights.

    With ``interrupted`` the weights of a row change as soon as others are published, and its swaps go to a journal.
    """

    def __init__(self, seed: int, *, interrupted: bool = False) -> None:
        super().__init__()
        self._rng, self._interrupted = random.Random(seed), interrupted
        self.fails_at: set[int] = set()  # number of groups that are played before one fails
        self.loses_rows: set[int] = set()  # iterations whose groups' rows are lost once
        self.num_played = 0
        self._rows: dict[str, str] = {}

    async def abandon_groups(self) -> None:
        self._rows.clear()

    async def play_group(
        self, rank: int, node_id: str, ticket: Ticket, folder: Path, swaps: tuple[Swap, ...] | None = None
    ) -> NodeResult:
        assert ticket.version in self._published
        self.num_played += 1
        number = self.num_played
        journal = SwapJournal.create(folder / f"{ticket.attempt}.{ticket.version}.swaps.parts", ticket.version, swaps)
        weights = {seed: await self._sample(seed, ticket, journal) for seed in seeds_of(ticket)}
        if number in self.fails_at:
            self.fails_at.remove(number)
            raise LOST
        shard_id = f"stream/{node_id}/{ticket.name}"
        self._rows[shard_id] = row_of(ticket, weights)
        facts, info = RowFacts(None, np.array([ticket.group])), {"swaps": journal.swaps()} if self._interrupted else {}
        return NodeResult(ShardRef(shard_id, "here", 1), {}, info, "", 1.0, facts=facts)

    async def _sample(self, seed: int, ticket: Ticket, journal: SwapJournal) -> list[str]:
        """Return the weights that sample each token of a row."""
        used = []
        for token in range(TOKENS):
            for _ in range(self._rng.choice([0, 1, 2, 5, 60]) if not token or self._interrupted else 0):
                await asyncio.sleep(0)
            version = ticket.version
            if self._interrupted:
                recorded = journal.recorded(seed, token)
                version = self.policy_version if recorded is None else recorded
                while version not in self._published:
                    await asyncio.sleep(0)
                journal.add(seed, token, version)
            used.append(self._published[version])
        return used

    async def run_node(self, work: NodeWork, parents: Any) -> NodeReport:
        if work.iteration in self.loses_rows:
            self.loses_rows.remove(work.iteration)
            self._rows.clear()
        [groups] = parents
        try:
            texts = [self._rows[shard.shard_id] for shard in groups.shards]
        except KeyError as error:
            raise ShardLostError(str(error.args[0]), "here") from error
        rows: Table = {"uid": np.arange(len(texts)), "text": np.array([list(text.encode()) for text in texts])}
        write_rows(Path(str(work.stage)) / "0.rows", rows)
        return replace(
            groups, shards=(ShardRef(f"{work.iteration}/rollout/0", "here", len(texts)),), digests=(digest_of(rows),)
        )

    async def free(self, prefix: str) -> None:
        self._rows = {shard: row for shard, row in self._rows.items() if not shard.startswith(prefix)}


def seeds_of(ticket: Ticket) -> range:
    return range(SIBLINGS * ticket.group, SIBLINGS * (ticket.group + 1))


def row_of(ticket: Ticket, weights: dict[int, list[str]]) -> str:
    return hashlib.sha256(f"{ticket.name} {weights}".encode()).hexdigest()


def versions_of(ticket: Ticket, swaps: Sequence[Swap]) -> dict[int, list[int]]:
    """Return the versions of each row's tokens that a record names."""
    versions = {seed: [ticket.version] * TOKENS for seed in seeds_of(ticket)}
    for seed, token, version in swaps:
        versions[seed][token:] = [version] * (TOKENS - token)
    return versions


@pytest.fixture(autouse=True)
def outside_of_flows(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_flows(monkeypatch)
    monkeypatch.setattr(training, "run_iteration", iterate)
    monkeypatch.setattr(training, "_log_progress", lambda *_: None)


def config_of(root: Path, run_id: str, *words: str) -> LanguageConfig:
    return language_config(
        *(
            f"run_root={root}",
            f"run_id={run_id}",
            f"iterations={ITERATIONS}",
        ),
        *("trainer.keep_checkpoints=2", f"rollout.max_staleness={STALENESS}", "algorithm.old_log_probs=proximal"),
        *("rollout.mode=streaming", f"rollout.num_groups={BATCH}", "rollout.num_workers=2", *words),
    )


def open_stream(folder: RunFolder, config: LanguageConfig, seed: int) -> Any:
    run = run_in(folder, config)
    run.session = GroupRanks(seed, interrupted=config.rollout.swaps_when_published)
    run.rollouts = Stream(config, run.session, run.stages, folder.groups, run.turns, "rollout")
    return run


async def train(run: Any, last: int | None) -> str:
    if last is None:
        await begin(run)
        await run.rollouts.start(0)
        last = 0
    await run_after(run, last)
    await run.rollouts.stop()
    return str(run.session.weights_digest)


def selections_of(run: Any) -> dict[int, Selection]:
    lines = [entry for entry in run.stages._ledger.entries if entry.kind == "groups"]
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


# ---- graphs


@pytest.mark.parametrize("name", ["grpo", "language_grpo", "ppo", "grpo_kl_reward"])
def test_graphs_with_one_generating_node_stream(name: str) -> None:
    assert generating_node(load_pipeline(name=name)) == "rollout"


@pytest.mark.parametrize(("name", "node_id"), [("dapo", "dynamic_sampling"), ("remax", "baseline")])
def test_graphs_that_play_further_rows_are_refused(name: str, node_id: str) -> None:
    with pytest.raises(ConfigError, match=f"rollout.mode=streaming: node '{node_id}' plays rows too; allowed are"):
        generating_node(load_pipeline(name=name))
