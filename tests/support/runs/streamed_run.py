"""A streamed run without Ray: groups are played in random times, and their rows depend on their names and weights."""

import asyncio
import hashlib
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from counting_run import Ranks, begin, run_after, run_in
from language_jobs import language_config

from embodyflow.config.language import LanguageConfig
from embodyflow.data.plans.row_plan import RowFacts, ShardRef
from embodyflow.data.rows_file import write_rows
from embodyflow.data.streaming.swaps import Swap
from embodyflow.data.streaming.tickets import Ticket
from embodyflow.data.tables import Table, digest_of
from embodyflow.errors import ShardLostError, WorkerLostError
from embodyflow.orchestration.run.streaming.stream import Stream
from embodyflow.record.run_folder import RunFolder
from embodyflow.rollouts.streaming.swap_journal import SwapJournal
from embodyflow.workers.calls import NodeReport, NodeResult, NodeWork

ITERATIONS, BATCH, STALENESS = 6, 3, 2
TOKENS, SIBLINGS = 4, 2
LATE = (1, 4, 7)
"""Groups whose rows meet newer weights in any case, if weights change within rows."""
LOST = WorkerLostError("a worker of the rollout group is gone")


class GroupRanks(Ranks):
    """A session whose ranks play groups in random times; a group's rows depend on its name and its weights.

    With ``interrupted`` the weights of a row change as soon as others are published, and its swaps go to a journal.
    """

    def __init__(self, seed: int, *, interrupted: bool = False) -> None:
        super().__init__(kept_episodes=1)
        self._rng, self._interrupted = random.Random(seed), interrupted
        self.fails_at: set[int] = set()  # number of groups that are played before one fails
        self.loses_rows: set[int] = set()  # iterations whose groups' rows are lost once
        self.num_played = 0
        self.num_rollout_workers = 2
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
        is_late = ticket.group in LATE and number < min(self.fails_at, default=number + 1)
        weights = {seed: await self._sample(seed, ticket, journal, is_late) for seed in seeds_of(ticket)}
        if due := [
            each for each in self.fails_at if each <= number
        ]:  # an earlier failure may have cancelled that group
            self.fails_at.remove(min(due))
            raise LOST
        shard_id = f"stream/{node_id}/{ticket.name}"
        self._rows[shard_id] = row_of(ticket, weights)
        facts, info = RowFacts(None, np.array([ticket.group])), {"swaps": journal.swaps()} if self._interrupted else {}
        return NodeResult(ShardRef(shard_id, "here", 1), {}, info, "", 1.0, facts=facts)

    async def _sample(self, seed: int, ticket: Ticket, journal: SwapJournal, is_late: bool) -> list[str]:
        """Return the weights that sample each token of a row."""
        used = []
        for token in range(TOKENS):
            for _ in range(self._rng.choice([0, 1, 2, 5, 60]) if not token or self._interrupted else 0):
                await asyncio.sleep(0)
            version = ticket.version
            if self._interrupted:
                if token == 2 and is_late:
                    await self._wait_for_newer(ticket.version)
                recorded = journal.recorded(seed, token)
                version = self.policy_version if recorded is None else recorded
                while version not in self._published:
                    await asyncio.sleep(0)
                journal.add(seed, token, version)
            used.append(self._published[version])
        return used

    async def _wait_for_newer(self, version: int) -> None:
        """Wait until newer weights are published, so that the row meets them; not for ever, as training may wait."""
        for _ in range(5000):
            if self.policy_version > version:
                return
            await asyncio.sleep(0.001)

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

    async def free(self, *prefixes: str) -> None:
        self._rows = {shard: row for shard, row in self._rows.items() if not shard.startswith(prefixes)}


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
