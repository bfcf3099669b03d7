"""A run without Ray that writes the files of a real one, and whose weights count their updates."""

import asyncio
import hashlib
import json
import logging
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embodyflow.config import RunConfig
from embodyflow.data.plans.row_plan import ShardRef
from embodyflow.data.rows_file import read_rows, write_rows
from embodyflow.data.tables import Table, digest_of
from embodyflow.orchestration.display import progress_log
from embodyflow.orchestration.evaluation import evaluation
from embodyflow.orchestration.run import recovery, stages, training
from embodyflow.orchestration.run.iterations import iteration, nodes
from embodyflow.orchestration.run.iterations.lookahead import Lookahead
from embodyflow.orchestration.run.iterations.turns import Turns
from embodyflow.orchestration.run.open_run import evaluations_of
from embodyflow.orchestration.run.scaling.scaling import FixedNumber
from embodyflow.orchestration.run.streaming.rollouts import WholeIterations
from embodyflow.record.ledger import Ledger
from embodyflow.record.run_folder import RunFolder
from embodyflow.rollouts.open_episodes import OpenEpisodes, OpenEpisodesFolder
from embodyflow.simulation.episode_history import EpisodeHistory
from embodyflow.workers.calls import NodeCall, NodeReport, NodeWork
from embodyflow.workers.ray_nodes import ClusterWatch

NUM_GROUPS = 2


def leave_flows(patch: pytest.MonkeyPatch) -> None:
    """Let a run work outside of a flow: it logs to Python's logging alone, and an evaluation always measures 0.5."""

    async def nothing(*_: object) -> None:
        pass

    async def evaluate(run: Any, index: int, lane: object) -> dict[str, float]:
        return {"eval/greedy_success_rate": 0.5}

    for module in (iteration, nodes, recovery, stages, progress_log):
        patch.setattr(module, "get_run_logger", lambda: logging.getLogger("run"))
    patch.setattr(recovery, "FIRST_PAUSE_SECONDS", 0.0)
    patch.setattr(recovery, "record_processes", nothing)
    patch.setattr(training, "report_progress", lambda run, index: None)
    patch.setattr(training, "log_progress", lambda *_: None)
    patch.setattr(evaluation, "evaluate", evaluate)
    patch.setattr(Ranks, "mend", nothing, raising=False)


class Ranks:
    """A session with one rollout rank, which writes a worker's files, and a trainer whose weights count updates."""

    def __init__(self, kept_episodes: int) -> None:
        self._kept_episodes = kept_episodes
        self.state: dict[str, Any] = {"updates": 0, "rows": ""}
        self.weights_digest, self.policy_version = "", 0
        self._published: dict[int, str] = {}
        self.held: dict[int, str] = {}

    async def run_node(self, work: NodeWork, parents: object) -> NodeReport:
        call = NodeCall(work, seed=0)
        journal, surplus, folder = call.journal(0), call.surplus(0), call.run_folder
        assert journal is not None and surplus is not None and folder is not None
        self._step_environments(
            OpenEpisodesFolder(folder / "open_episodes", 0, keep=self._kept_episodes), work.iteration
        )
        for group in range(len(journal.read()), NUM_GROUPS):
            journal.append(rows_of(work.iteration, group))
            await asyncio.sleep(0)
        waiting = [int(table["uid"][0]) for table in surplus[0].read()]
        rows = rows_of(work.iteration, *range(NUM_GROUPS), *waiting)
        rows["tokens"] += int(
            self._published[work.policy_version][:8], 16
        )  # so rows depend on the weights of the rollout
        surplus[1].replace(rows_of(work.iteration, 7))
        write_rows(Path(str(work.stage)) / "0.rows", rows)
        journal._path.unlink()
        return NodeReport(
            node_id="rollout",
            group="rollout",
            shards=(ShardRef(f"{work.iteration}/rollout/0", "here", len(rows["uid"])),),
            metrics={},
            info={},
            digests=(digest_of(rows),),
            seconds=0.0,
            logs=(),
        )

    def _step_environments(self, kept: OpenEpisodesFolder, index: int) -> None:
        num_steps = len(kept.read(index - 1).histories[0].actions) if index > 1 else 0
        history = EpisodeHistory(index, None, np.arange(num_steps + 2.0))
        kept.write(index, OpenEpisodes([history], np.ones(1, np.int64), np.zeros(1), None, np.array([num_steps + 2])))

    async def recall(self, work: NodeWork, kept: NodeReport) -> NodeReport:
        read_rows(Path(str(work.stage)) / "0.rows", kept.digests[0])
        return kept

    def train(self, report: NodeReport) -> None:
        read = hashlib.sha256("".join([self.state["rows"], *report.digests]).encode()).hexdigest()
        self.state = {"updates": self.state["updates"] + 1, "rows": read}

    async def publish_weights(self, version: int) -> str:
        self.weights_digest, self.policy_version = hashlib.sha256(json.dumps(self.state).encode()).hexdigest(), version
        self._published[version] = self.weights_digest
        await asyncio.sleep(0)
        return self.weights_digest

    def hold(self, version: int) -> None:
        if version not in self.held:
            assert version == self.policy_version, "only the newest weights are there"
            self.held[version] = self.weights_digest

    def held_digest(self, version: int) -> str | None:
        return self.held.get(version)

    async def release(self, version: int) -> None:
        del self.held[version]

    async def begin_save(self, folder: Path, *, whole: bool) -> asyncio.Task[None]:
        for name, value in self.state.items():
            (folder / name).mkdir()
            (folder / name / "0").write_text(json.dumps(value))
        return asyncio.create_task(asyncio.sleep(0))

    async def load_reference(self, folder: Path) -> None:
        assert (folder / "commit.json").exists()

    async def restore(self, folder: Path) -> None:
        self.state = {name: json.loads((folder / name / "0").read_text()) for name in self.state}

    async def free(self, *prefixes: str) -> None:
        await asyncio.sleep(0)


def rows_of(index: int, *groups: int) -> Table:
    uid = np.array([100 * index + group for group in groups])
    return {"uid": uid, "tokens": np.arange(len(uid) * 4).reshape(-1, 4) * index}


def run_in(folder: RunFolder, config: RunConfig) -> Any:
    repeatable, ledger = config.repeatable_iterations, Ledger(folder.ledger_path)
    kept = stages.Stages(folder, ledger, config.kept_checkpoints, repeatable_iterations=repeatable)
    turns, session = Turns(config.rollout.max_staleness), Ranks(kept_episodes=repeatable + 2)
    return SimpleNamespace(
        config=config,
        folder=folder,
        session=session,
        trackers=[],
        stages=kept,
        turns=turns,
        rollouts=WholeIterations(session),  # type: ignore[arg-type]
        evaluations=evaluations_of(config),
        scaling=FixedNumber(config),
        cluster=ClusterWatch(),
    )


def work_of(run: Any, index: int) -> NodeWork:
    here, there = (run.stages.path(each, "rollout") for each in (index, index + 1))
    version = run.turns.rollout_version(index)
    files = {"stage": here, "next_stage": there, "run_folder": str(run.folder.path)}
    return NodeWork("rollout", "", "rollout", index, **files, policy_version=version)


async def iterate(run: Any, index: int, metrics: dict[str, float] | None = None) -> None:
    """Run an iteration, with its metrics if any are given.

    It does what :mod:`embodyflow.orchestration.run.iterations.iteration` does.
    """
    nodes.CURRENT_RUN.set(run)
    await run.scaling.begin(index)
    report = await nodes._run_or_recall(work_of(run, index), [])
    run.turns.mark_rolled_out(index)
    await run.turns.wait_to_train(index)
    run.session.train(report)
    await iteration.commit(index, metrics or {"loss": 1 / index}, {"rollout": list(report.digests)})


async def run_after(run: Any, last: int) -> None:
    """Train from a commit to the end as :mod:`embodyflow.orchestration.run.training` does."""
    iterations = run.config.iterations
    lookahead = Lookahead(partial(training._run_in_turn, run), run.turns.max_staleness, iterations)
    for index in range(last, iterations + 1):
        await recovery.with_recovery(run, f"iteration {index}", partial(training._run_until, run, lookahead, index))
    await recovery.with_recovery(run, "the evaluations", run.evaluations.finish)
    await run.stages.drain()


async def begin(run: Any) -> None:
    nodes.CURRENT_RUN.set(run)
    await iteration.publish(0)
    await iteration.begin_commit(0)
