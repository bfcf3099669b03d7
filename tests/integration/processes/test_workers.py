"""Worker groups on a real Ray cluster on this machine: nodes, failures and leftover processes."""

import asyncio
import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray
import torch
from room_training import SMALL
from support_path import SUPPORT_PATH
from waiting import eventually

from embodyflow.config import RunConfig
from embodyflow.config.buffer import BufferConfig
from embodyflow.config.composition.compose import compose_config
from embodyflow.data.metrics import total
from embodyflow.data.plans.row_plan import RankInput, Slice, split_evenly
from embodyflow.data.tables import digest_of
from embodyflow.errors import ConfigError, ShardLostError, WorkerLostError
from embodyflow.orchestration.run.iterations.graph_run import GraphRun
from embodyflow.orchestration.run.iterations.turns import Turns
from embodyflow.rewards.interface import Sample, Score
from embodyflow.rewards.reward_config import RewardConfig
from embodyflow.rewards.reward_registry import build_reward_manager
from embodyflow.types import NodeOutput
from embodyflow.workers import group
from embodyflow.workers.calls import NodeReport, NodeWork
from embodyflow.workers.rows.buffer_client import BufferClient
from embodyflow.workers.rows.buffers import start_buffers
from embodyflow.workers.rows.layout import Layout
from embodyflow.workers.session import Session, open_session
from pipelines import NodeRole, NodeType, Pipeline, TaskGraph

pytestmark = pytest.mark.integration
PATIENCE = 60.0  # seconds, enough for a busy machine


def count_rows(batch: Any, config: Any = None, *, worker: Any, call: Any, **kwargs: Any) -> NodeOutput:
    batch["position"] = torch.from_numpy(call.positions)
    info = {"ranks": worker.world_size, "total": call.total_rows, "greeting": config.get("greeting")}
    return NodeOutput(batch, {"rows": total(len(batch))}, info)


def fail_on_the_last_rank(batch: Any, config: Any = None, *, worker: Any, **kwargs: Any) -> NodeOutput:
    if worker.rank == worker.world_size - 1:
        raise LookupError("the drawer is stuck")
    return NodeOutput(None)


def sleep(batch: Any, config: Any = None, **kwargs: Any) -> NodeOutput:
    began = time.monotonic()
    time.sleep(config["seconds"])
    return NodeOutput(None, info={"interval": (began, time.monotonic())})


def spin(batch: Any, config: Any = None, **kwargs: Any) -> NodeOutput:
    try:
        while True:
            time.sleep(0.01)
    except Exception:  # a node that swallows exceptions must not survive its time limit
        pass
    return NodeOutput(None)


def nudge_a_weight(batch: Any, config: Any = None, *, worker: Any, **kwargs: Any) -> NodeOutput:
    with torch.no_grad():
        next(iter(worker.policy.model.parameters())).add_(config["by"])
    return NodeOutput(None)


def nudge_frozen_weights(batch: Any, config: Any = None, *, worker: Any, **kwargs: Any) -> NodeOutput:
    frozen = [value for value in worker.policy.model.parameters() if not value.requires_grad]
    with torch.no_grad():
        for value in frozen:
            value.mul_(config["by"])
    return NodeOutput(None)


def keep_some(batch: Any, config: Any = None, *, worker: Any, **kwargs: Any) -> NodeOutput:
    return NodeOutput(batch[: config["rows"] - worker.rank])


def add_column(config: Any, batch: Any, **kwargs: Any) -> NodeOutput:  # arguments in another order
    batch[config["column"]] = batch["uid"] * config["factor"]
    return NodeOutput(batch)


def run_out_of_time(batch: Any, config: Any = None, **kwargs: Any) -> NodeOutput:
    raise TimeoutError("the camera did not answer")


def record_gpu(batch: Any, config: Any = None, *, worker: Any, call: Any, **kwargs: Any) -> NodeOutput:
    """Write the GPU that Ray assigns to the worker into a file with the worker's name."""
    group = "trainer" if hasattr(worker, "connect") else "rollout"
    (Path(config["folder"]) / f"{group}-{worker.rank}").write_text(os.environ["CUDA_VISIBLE_DEVICES"])
    return NodeOutput(None)


def work_of(name: str, group: str | None, node_id: str | None = None, **config: Any) -> NodeWork:
    function = name if ":" in name else f"{__name__}:{name}"
    return NodeWork(node_id or name.rpartition(":")[2], function, group, iteration=1, config=config)


class Run:
    """A session that stays open between tests, with its event loop."""

    def __init__(self, config: RunConfig) -> None:
        self._loop = asyncio.Runner()
        self._opened = open_session(config)
        self.session: Session = self._loop.run(self._opened.__aenter__())

    def node(
        self, name: str, group: str | None, *parents: NodeReport, node_id: str | None = None, **config: Any
    ) -> NodeReport:
        return self.wait(self.session.run_node(work_of(name, group, node_id, **config), parents))

    def wait(self, coroutine: Any) -> Any:
        async def within_patience() -> Any:
            return await asyncio.wait_for(coroutine, PATIENCE)

        return self._loop.run(within_patience())

    def close(self) -> None:
        if self._opened is not None:
            self._loop.run(self._opened.__aexit__(None, None, None))
            self._loop.close()
            self._opened = None  # type: ignore[assignment]


def our_processes() -> dict[int, str]:
    """Return the command lines of the Ray actors below this process, by process id."""
    actors = {}
    for process in psutil.Process().children(recursive=True):
        try:
            title = " ".join(process.cmdline())
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        if re.match(r"ray::(Worker|Buffer)", title):
            actors[process.pid] = title
    return actors


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    before = set(psutil.Process().children())
    ray.init(
        address="local",
        num_cpus=2,
        num_gpus=2,  # no worker in these tests uses a GPU
        include_dashboard=False,
        log_to_driver=False,
        namespace="test",
        # Workers import this module.
        runtime_env={"env_vars": {"PYTHONPATH": f"{Path(__file__).parent}:{SUPPORT_PATH}"}},
    )
    ours = set(psutil.Process().children()) - before
    started = {process for each in ours for process in (each, *each.children(recursive=True))}
    yield
    ray.shutdown()
    _, alive = psutil.wait_procs(started, timeout=PATIENCE)
    for process in alive:
        process.kill()  # later modules count processes
    assert not alive


@pytest.fixture(scope="module")
def config(tiny_config) -> RunConfig:
    return tiny_config("rollout.num_workers=2", "rollout.num_groups=4")


@pytest.fixture(scope="module")
def run(cluster: None, config: RunConfig) -> Iterator[Run]:
    run = Run(config)
    yield run
    run.close()


def test_a_buffer_holds_rows_until_they_are_freed() -> None:
    [(host, buffer)] = start_buffers("buffer-test", BufferConfig()).items()
    client = BufferClient({host: buffer})
    shards = [client.put(f"1/node/{rank}", {"uid": np.arange(3) + 3 * rank}) for rank in (0, 1)]
    other = client.put("10/node/0", {"uid": np.arange(2)})
    assert [(shard.host, shard.num_rows) for shard in (*shards, other)] == [(host, 3), (host, 3), (host, 2)]
    parts = [client.get(part)["uid"].tolist() for part in split_evenly(shards, 4)]
    assert parts == [[0], [1, 2], [3], [4, 5]]
    whole = client.get(RankInput((Slice(shards[0], 0, 3),), 0, 3))
    whole["uid"][0] = 7  # changes only the reader's copy
    assert client.get_shard(shards[0])["uid"].tolist() == [0, 1, 2]
    again = client.put("1/node/0", {"uid": np.array([9])})  # the node was retried with another outcome
    assert client.get_shard(again)["uid"].tolist() == [9]
    with pytest.raises(RuntimeError, match="shard 1/node/0 has 1 rows; the plan expects 3"):
        client.get_shard(shards[0])
    assert ray.get(buffer.free.remote("1/")) == 2
    assert ray.get(buffer.num_shards.remote()) == 1
    with pytest.raises(KeyError, match="1/node/0"):
        client.get_shard(shards[0])
    ray.kill(buffer)


def test_rows_go_from_the_rollout_workers_to_the_trainer_in_order(run: Run, config: RunConfig) -> None:
    digest = run.wait(run.session.publish_weights(3))
    assert digest == run.session.weights_digest and len(digest) == 64
    episodes = run.node("tasks:generate", "rollout")
    assert [shard.num_rows for shard in episodes.shards] == [4, 4]
    assert (episodes.group, episodes.num_rows, len(episodes.digests)) == ("rollout", 8, 2)
    assert episodes.metrics["rollout/num_episodes"].value == 8
    counted = run.node("count_rows", "trainer", episodes, greeting="hello")
    assert (counted.num_rows, counted.metrics["rows"].value) == (8, 8)
    assert counted.info == {"ranks": 1, "total": 8, "greeting": "hello"}
    [buffer] = run.session._buffers.values()
    client = BufferClient(run.session._buffers)
    [rows] = [client.get_shard(shard) for shard in counted.shards]
    assert rows["uid"].tolist() == list(range(8, 16))  # iteration 1 of 8 rows each
    assert rows["policy_version"].tolist() == [3] * 8
    assert counted.digests == (digest_of(rows),)

    halves = run.node("count_rows", None, episodes, node_id="count_again")  # runs where its rows are
    assert (halves.group, halves.info["ranks"]) == ("rollout", 2)
    positions = [client.get_shard(shard)["position"].tolist() for shard in halves.shards]
    assert positions == [[0, 1, 2, 3], [4, 5, 6, 7]]
    replicated = NodeWork("everywhere", f"{__name__}:count_rows", "rollout", 1, {}, Layout.REPLICATE)
    assert run.wait(run.session.run_node(replicated, [counted])).metrics["rows"].value == 16

    before = ray.get(buffer.num_shards.remote())
    run.wait(run.session.free("1/"))
    assert ray.get(buffer.num_shards.remote()) == 1 < before  # the weights remain


def test_a_repeated_node_gives_the_same_rows(run: Run) -> None:
    run.wait(run.session.publish_weights(4))
    first, again = (run.node("tasks:generate", "rollout") for _ in range(2))
    assert first.digests == again.digests and len(set(first.digests)) == 2


def test_new_weights_replace_the_old_ones_and_may_be_republished(run: Run) -> None:
    [buffer] = run.session._buffers.values()
    run.wait(run.session.free(""))
    digests = {run.wait(run.session.publish_weights(version)) for version in (8, 9, 9)}
    assert len(digests) == 1  # nothing was trained
    assert ray.get(buffer.num_shards.remote()) == 1
    assert run.node("tasks:generate", "rollout").num_rows == 8


def test_an_exception_in_a_node_reaches_the_caller_with_the_workers_traceback(run: Run) -> None:
    with pytest.raises(LookupError) as caught:
        run.node("fail_on_the_last_rank", "rollout")
    for part in ("the drawer is stuck", "in fail_on_the_last_rank", "test_workers.py", "raise LookupError"):
        assert part in str(caught.value)
    assert run.node("sleep", "rollout", seconds=0).num_rows == 0  # the group still works


def test_a_missing_function_is_named(run: Run) -> None:
    with pytest.raises(ImportError, match="'tasks' has no attribute 'generate_all'"):
        run.node("tasks:generate_all", "rollout")


def test_a_node_is_interrupted_at_its_time_limit_and_the_group_still_works(run: Run) -> None:
    started = time.monotonic()
    with pytest.raises(TimeoutError, match=r"node spin took longer than 0.5 s"):
        run.wait(run.session.run_node(replace(work_of("spin", "trainer"), timeout=0.5)))
    assert run.node("sleep", "trainer", seconds=0).num_rows == 0
    assert time.monotonic() - started < 5.0, "the node was abandoned instead of interrupted"


def test_a_node_that_hangs_in_native_code_is_abandoned(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "INTERRUPT_SECONDS", 0.2)
    with pytest.raises(TimeoutError, match=r"sleep on the trainer group took longer than 0\.5 s") as late:
        run.wait(run.session.run_node(replace(work_of("sleep", "trainer", seconds=2), timeout=0.3)))
    assert str(late.value) == "sleep on the trainer group took longer than 0.5 s"
    assert "in sleep" in late.value.__notes__[0]  # the place where it hung
    assert run.node("sleep", "trainer", seconds=0, node_id="after").num_rows == 0


def test_nodes_without_a_model_run_side_by_side(run: Run) -> None:
    async def both(seconds: float) -> list[NodeReport]:
        calls = [work_of("sleep", "rollout", name, seconds=seconds) for name in ("left", "right")]
        return await asyncio.gather(*(run.session.run_node(replace(call, needs_model=False)) for call in calls))

    run.wait(both(0.0))  # includes imports
    left, right = (report.info["interval"] for report in run.wait(both(1.0)))
    assert max(left[0], right[0]) < min(left[1], right[1])


def test_a_forward_only_node_that_changes_weights_fails(run: Run) -> None:
    def forward_only(by: float) -> NodeWork:
        return replace(work_of("nudge_a_weight", "trainer", by=by), only_forward_compute=True)

    run.wait(run.session.run_node(forward_only(by=0.0)))
    with pytest.raises(RuntimeError, match="nudge_a_weight changed weights although it is only_forward_compute"):
        run.wait(run.session.run_node(forward_only(by=1.0)))
    run.node("nudge_a_weight", "trainer", by=-1.0)


def test_branches_of_different_groups_meet_row_by_row(run: Run) -> None:
    """The first parent's rows stay in place, unevenly spread; the other's come from the trainer, split to match."""
    rows = run.node("count_rows", "rollout", run.node("tasks:generate", "rollout"), node_id="rows")
    uneven = run.node("keep_some", None, rows, rows=3)
    left = run.node("add_column", None, uneven, node_id="left", column="double", factor=2)
    right = run.node("add_column", "trainer", uneven, node_id="right", column="triple", factor=3)
    assert ([shard.num_rows for shard in left.shards], [shard.num_rows for shard in right.shards]) == ([3, 2], [5])
    met = run.node("keep_some", None, left, right, node_id="met", rows=9)
    client = BufferClient(run.session._buffers)
    for shard in met.shards:
        got = client.get_shard(shard)
        assert (got["double"] == 2 * got["uid"]).all() and (got["triple"] == 3 * got["uid"]).all()
    with pytest.raises(ValueError, match=r"node met: its parents pass on different numbers of rows: .*rows.* 8.* 5"):
        run.node("keep_some", None, rows, right, node_id="met", rows=9)


def test_a_timeout_error_inside_a_node_is_reported_as_its_own(run: Run) -> None:
    with pytest.raises(TimeoutError, match="the camera did not answer"):
        run.node("run_out_of_time", "rollout")


def test_workers_that_do_not_fit_the_cluster_are_refused_before_any_starts(config: RunConfig) -> None:
    cluster = config.cluster.model_copy(update={"cpus_per_worker": 0.75})
    crowded = config.model_copy(update={"cluster": cluster, "run_id": "crowded"})
    before = our_processes()
    with pytest.raises(ConfigError, match=r"cluster.cpus_per_worker=0.75: 3 workers need 2.25 CPUs, .* has 2$"):
        Run(crowded)
    assert our_processes().keys() <= before.keys()


@pytest.mark.slow
def test_workers_that_share_gpus_are_spread_over_them(config: RunConfig, tmp_path: Path) -> None:
    shares = config.cluster.model_copy(update={"gpus_per_worker": 0.25, "cpus_per_worker": 0.1})
    trainer = config.trainer.model_copy(update={"num_ranks": 2})
    sharing = Run(config.model_copy(update={"cluster": shares, "trainer": trainer, "run_id": "sharing"}))
    try:
        assert ray.available_resources().get("GPU", 0.0) == 0.0
        for role in ("trainer", "rollout"):
            sharing.node("record_gpu", role, folder=str(tmp_path))
        gpus = {path.name: path.read_text() for path in tmp_path.iterdir()}
        assert gpus.keys() == {"trainer-0", "trainer-1", "rollout-0", "rollout-1"}
        assert {gpus["trainer-0"], gpus["trainer-1"]} == {gpus["rollout-0"], gpus["rollout-1"]} == {"0", "1"}
        os.kill(sharing.wait(sharing.session.processes())["rollout/1"], signal.SIGKILL)
        sharing.node("record_gpu", "rollout", folder=str(tmp_path))
        assert {path.name: path.read_text() for path in tmp_path.iterdir()} == gpus
    finally:
        sharing.close()
    assert eventually(lambda: ray.available_resources().get("GPU", 0.0) == 2.0)


def test_gpus_that_the_cluster_lacks_are_refused(config: RunConfig) -> None:
    shares = config.cluster.model_copy(update={"gpus_per_worker": 0.25, "cpus_per_worker": 0.1})
    trainer = config.trainer.model_copy(update={"num_ranks": 3})
    crowded = config.model_copy(update={"cluster": shares, "trainer": trainer, "run_id": "crowded"})
    with pytest.raises(ConfigError, match=r"cluster.gpus_per_worker=0.25: 5 workers need 3 GPUs, .* has 2$"):
        Run(crowded)


class Passes:
    """Runs of one graph in a session, in which a buffer may die after a node."""

    def __init__(self, run: Run, folder: Path) -> None:
        self._session, self._folder = run.session, folder
        self.ran: list[str] = []

    def graph(self, *, trains: bool = False) -> TaskGraph:
        here, train = __name__, NodeType.MODEL_TRAIN
        return (
            Pipeline("passes")
            .add_node("rollout", func="tasks:generate", node_type=NodeType.MODEL_INFERENCE, node_role=NodeRole.ROLLOUT)
            .add_node("left", func=f"{here}:add_column", deps=["rollout"], config={"column": "double", "factor": 2})
            .add_node("right", func=f"{here}:add_column", deps=["rollout"], config={"column": "triple", "factor": 3})
            .add_node(
                "met",
                func=f"{here}:count_rows",
                deps=["left", "right"],
                node_type=train,
                node_role=NodeRole.ACTOR,
                only_forward_compute=not trains,
            )
            .add_node("last", func=f"{here}:count_rows", deps=["met"])
            .build()
        )

    async def once(self, graph: TaskGraph, dies_after: str = "") -> dict[str, NodeReport]:
        self.ran = []

        async def run_node(work: NodeWork, parents: list[NodeReport], retries: int) -> NodeReport:
            report = await self._session.run_node(work, parents)
            self.ran.append(work.node_id)
            if work.node_id == dies_after and self.ran.count(dies_after) == 1:
                buffer = psutil.Process(report.shards[0].location.pid)
                buffer.kill()
                await asyncio.to_thread(buffer.wait, PATIENCE)
            return report

        publish, place = partial(self._session.publish_weights, 0), lambda _, node_id: str(self._folder / node_id)
        await publish()
        return await GraphRun(graph, 1, run_node, publish, place, Turns(0)).run()


def test_a_dead_buffer_costs_a_recompute_and_changes_no_row(run: Run, tmp_path: Path) -> None:
    passes = Passes(run, tmp_path)
    whole = run.wait(passes.once(passes.graph()))
    assert sorted(passes.ran) == ["last", "left", "met", "right", "rollout"]
    for victim in ("rollout", "met"):
        again = run.wait(passes.once(passes.graph(), dies_after=victim))
        assert {name: report.digests for name, report in again.items()} == {n: r.digests for n, r in whole.items()}
        assert passes.ran.count("rollout") == 2, passes.ran


def test_the_lost_output_of_a_training_node_is_not_recomputed(run: Run, tmp_path: Path) -> None:
    passes = Passes(run, tmp_path)
    with pytest.raises(ExceptionGroup) as caught:
        run.wait(passes.once(passes.graph(trains=True), dies_after="met"))
    [lost] = caught.value.exceptions
    assert isinstance(lost, ShardLostError) and lost.shard_id.startswith("1/met/")
    assert passes.ran.count("met") == 1
    run.wait(run.session.publish_weights(6))


def test_a_start_that_fails_leaves_no_process(config: RunConfig) -> None:
    env = config.env.model_copy(update={"kwargs": {"gravity": 0}})  # each worker detects it
    before = our_processes()
    with pytest.raises(ray.exceptions.ActorDiedError, match="unexpected keyword argument 'gravity'"):
        Run(config.model_copy(update={"env": env, "run_id": "broken"}))
    assert eventually(lambda: our_processes().keys() <= before.keys(), PATIENCE), "a worker remains"


def test_a_training_step_runs_once_even_if_requested_twice(run: Run) -> None:
    def train(node_id: str, name: str = "nudge_a_weight") -> NodeReport:
        return run.wait(run.session.run_node(replace(work_of(name, "trainer", node_id, by=1.0), trains=True)))

    before = run.wait(run.session.publish_weights(20))
    first = train("train")
    once = run.wait(run.session.publish_weights(21))
    assert train("train") == first
    assert run.wait(run.session.publish_weights(22)) == once != before
    with pytest.raises(LookupError):
        train("breaks", "fail_on_the_last_rank")
    for half_trained in (lambda: train("after"), lambda: run.wait(run.session.publish_weights(23))):
        with pytest.raises(WorkerLostError, match="the model is half trained: node breaks failed mid-step"):
            half_trained()


def test_a_mended_session_has_its_first_weights(run: Run) -> None:
    run.wait(run.session.mend())
    first = run.wait(run.session.publish_weights(30))
    [pid] = run.wait(run.session._groups["trainer"].call("ready"))
    os.kill(pid, signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(WorkerLostError, match="a worker of the trainer group is gone"):
        run.node("sleep", "trainer", seconds=0)
    assert time.monotonic() - started < PATIENCE / 2, "the run waited for the dead worker"
    run.wait(run.session.mend())
    assert run.wait(run.session.publish_weights(31)) == first
    assert run.node("tasks:generate", "rollout").num_rows == 8


def test_frozen_weights_are_published_once_and_again_after_a_change_or_a_loss() -> None:
    words = ("policy=tiny_smolvla", "policy.train_expert_only=true", "trainer.num_ranks=2", "run_id=frozen")
    run = Run(compose_config([*SMALL, *words]))
    [buffer] = run.session._buffers.values()

    def play(version: int) -> tuple[str, str]:
        """Publish a version and play with it; return the digests of the weights and of the rows but for the version."""
        digest = run.wait(run.session.publish_weights(version))
        [shard] = run.node("tasks:generate", "rollout").shards
        rows = BufferClient(run.session._buffers).get_shard(shard)
        return digest, digest_of({name: column for name, column in rows.items() if name != "policy_version"})

    def shared() -> str:
        shard = run.session._versions.refs[run.session.policy_version].shared
        assert shard is not None
        return shard.shard_id

    first, base = play(0), shared()
    assert play(1) == first and shared() == base
    run.wait(run.session.free("1/"))
    assert ray.get(buffer.num_shards.remote()) == 2, "the version's own weights, and the shared ones"

    run.node("nudge_frozen_weights", "trainer", by=2.0)  # as a warm start may
    changed = play(2)
    assert changed[0] != first[0] and changed[1] != first[1] and shared() != base
    run.node("nudge_frozen_weights", "trainer", by=0.5)

    os.kill(run.wait(run.session.processes())["rollout/0"], signal.SIGKILL)
    assert play(3) == first and shared() == base
    os.kill(ray.get(buffer.pid.remote()), signal.SIGKILL)
    run.wait(run.session.mend())
    assert play(4) == first and shared() == base
    run.close()


def test_a_killed_rollout_worker_is_replaced_and_gives_the_same_rows(run: Run) -> None:
    before = run.node("tasks:generate", "rollout")
    pids = run.wait(run.session._groups["rollout"].call("ready"))
    assert set(pids) <= our_processes().keys()
    os.kill(pids[1], signal.SIGKILL)
    assert run.node("tasks:generate", "rollout").digests == before.digests
    now = run.wait(run.session._groups["rollout"].call("ready"))
    assert now[0] == pids[0] and now[1] != pids[1]
    assert run.wait(run.session.processes())["rollout/1"] == now[1]


def test_rollout_workers_come_and_go_between_two_nodes(run: Run) -> None:
    def rows_of(report: NodeReport) -> list[Any]:
        client = BufferClient(run.session._buffers)
        return [uid for shard in report.shards for uid in client.get_shard(shard)["uid"].tolist()]

    before = run.node("tasks:generate", "rollout")
    rows, pids = rows_of(before), run.wait(run.session._groups["rollout"].call("ready"))
    run.wait(run.session.resize_rollouts(1))
    assert eventually(lambda: pids[1] not in our_processes(), PATIENCE), "the worker that has ended is still there"
    assert "rollout/1" not in run.wait(run.session.processes())
    alone = run.node("tasks:generate", "rollout")
    assert len(alone.shards) == 1 and rows_of(alone) == rows
    run.wait(run.session.resize_rollouts(2))
    again = run.node("tasks:generate", "rollout")
    assert again.digests == before.digests and rows_of(again) == rows
    assert run.wait(run.session.processes())["rollout/0"] == pids[0]


def test_closing_leaves_no_process(run: Run) -> None:
    titles = sorted(our_processes().values())
    assert sum("Worker" in title for title in titles) >= 2 and any("Buffer" in title for title in titles), titles
    run.close()
    assert eventually(lambda: not our_processes(), PATIENCE), "a process remains"


@ray.remote(num_cpus=0)
class Scorer:
    """An actor that computes rewards in processes, from a thread."""

    def __init__(self) -> None:
        slow = {"name": "regex", "pattern": "^(?:(?:a+)+)b(.*)$"}  # exponential time for a response of a's
        pool = {"name": "parallel", "num_workers": 2, "time_limit": 1.0, "retries": 0, "overdue": "incorrect"}
        self.manager = build_reward_manager(RewardConfig(function=slow, manager=pool))

    def pid(self) -> int:
        return os.getpid()

    def score(self, responses: list[str]) -> list[Score]:
        samples = [Sample(uid, "?", response, "yes", "test", 1, True) for uid, response in enumerate(responses)]
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(self.manager.score, samples).result()


def reward_processes(actor: int) -> set[int]:
    """Return the reward processes of the actor with this process id. Other tests may have some at the same time."""
    theirs = re.compile(rf"pool_worker import main; main\(\d+, {actor}\b")  # holds also once the actor is gone
    return {p.pid for p in psutil.process_iter(["cmdline"]) if theirs.search(" ".join(p.info["cmdline"] or ()))}


def test_reward_processes_of_an_actor_end_with_it() -> None:
    scorer = Scorer.remote()
    actor = ray.get(scorer.pid.remote(), timeout=PATIENCE)
    right, wrong, endless = "aaab yes", "aaab no", "a" * 60
    scores = ray.get(scorer.score.remote([right, endless, wrong, right]), timeout=PATIENCE)
    assert [score.reward for score in scores] == [1.0, 0.0, 0.0, 1.0] and scores[1].parts == {"timed_out": 1.0}
    assert len(reward_processes(actor)) in (1, 2)  # the killed one may not have been replaced
    unanswered = scorer.score.remote([endless])
    time.sleep(0.3)  # while it computes
    ray.kill(scorer)
    assert eventually(lambda: not reward_processes(actor), PATIENCE), "reward processes remain"
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(unanswered, timeout=PATIENCE)
