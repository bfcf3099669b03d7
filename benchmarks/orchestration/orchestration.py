"""The cost of orchestration in milliseconds per iteration of seven empty nodes.

Run ``python benchmarks/orchestration/orchestration.py`` (under four minutes). Contenders:

* ``raw Ray loop``: only the seven calls to the workers, one after the other;
* ``plain Prefect``: an async subflow of seven tasks that return at once, without workers, rows or files;
* ``ours``: the real ``iteration`` run on the raw loop's workers, with one Prefect task run per node, its commit
  (weights published, checkpoint and metrics on disk) and its artifacts;
* ``ours, one task run``: the same with ``pipeline.task_runs=iteration``.

Each runs with a Prefect server on SQLite, and with one on Postgres if this machine has Postgres.

The graph is the default job's, with all functions replaced by one that passes on a single row. Servers and contenders
live side by side and take turns in blocks, so other load on the machine affects all of them alike. ``--job
runs/<run_id>`` compares with the iterations of a real run. ``--quick`` runs six short blocks with SQLite only.
"""

import argparse
import asyncio
import json
import os
import pwd
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import psutil
import ray
from prefect import flow, task
from prefect.cache_policies import NO_CACHE

import embodyflow.orchestration.run.iterations.iteration
from embodyflow.config.composition.compose import compose_config
from embodyflow.config.run import GroupShape
from embodyflow.data.plans.row_plan import RankInput, Slice
from embodyflow.orchestration.display.artifacts import open_artifacts
from embodyflow.orchestration.display.reporting import report_progress
from embodyflow.orchestration.evaluation.between_iterations import BetweenIterations
from embodyflow.orchestration.run.cluster import ray_cluster
from embodyflow.orchestration.run.iterations.nodes import CURRENT_RUN, Run
from embodyflow.orchestration.run.iterations.turns import Turns
from embodyflow.orchestration.run.scaling.scaling import FixedNumber
from embodyflow.orchestration.run.stages import Stages
from embodyflow.orchestration.run.streaming.rollouts import WholeIterations
from embodyflow.orchestration.server.iteration_runs import iteration_runs
from embodyflow.orchestration.server.settings import BATCHED_WRITES, NO_TELEMETRY, server_command
from embodyflow.process.ports import free_port, listen_on
from embodyflow.record.ledger import Ledger
from embodyflow.record.run_folder import RunFolder
from embodyflow.record.trackers import open_trackers
from embodyflow.stack.processes import start_process, stop_processes
from embodyflow.stack.signals import exit_on_signals
from embodyflow.workers.calls import NodeCall, NodeResult, NodeWork
from embodyflow.workers.group import WorkerGroup
from embodyflow.workers.ray_nodes import ClusterWatch
from embodyflow.workers.rows.buffers import start_buffers
from embodyflow.workers.session import Session
from pipelines import NodeType, TaskGraph, load_pipeline

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "orchestration.json"
TARGET_MS = 150.0
KINDS = {"raw": "raw Ray loop", "plain": "plain Prefect", "ours": "our iteration", "one": "ours, one task run"}
TARGET_SHARE = 0.05

# Timed functions: name and owner.
TIMED = {
    "submit_node": embodyflow.orchestration.run.iterations.iteration,
    "run_node": Session,
    "commit": embodyflow.orchestration.run.iterations.iteration,
}


def empty_graph() -> TaskGraph:
    graph = load_pipeline(name="embodied_grpo", custom_fn=None, yaml=None).to_dict()
    for node in graph["nodes"]:
        node["executable_ref"] = "empty_nodes:empty_node"
    return TaskGraph.from_dict(graph)


# ---- one contender: a process with its own workers, attached to one Prefect server


@flow(name="orchestration", persist_result=False)
async def contend(run_id: str, folder: str, iterations: int) -> None:
    """Run the blocks that stdin requests, such as ``ours 15``, and print the times of each as JSON."""
    sizes = ["rollout.num_workers=1", "trainer.num_ranks=1", "cluster.cpus_per_worker=0", "rollout.keep_episodes=0"]
    config = compose_config([f"run_id={run_id}", f"run_root={folder}", f"iterations={iterations}", *sizes])
    with ray_cluster(config):
        buffers = start_buffers(run_id, config.cluster.buffer)
        shape = GroupShape("empty_nodes:EmptyEngine", 1)
        groups: dict[str, WorkerGroup] = {}
        session = Session(config, groups, buffers)
        given = {"provide_buffers": session.provide_buffers}
        for role in ("rollout", "trainer"):
            groups[role] = WorkerGroup(role, shape, config, buffers, [{}], is_collective=role == "trainer", **given)
            await groups[role].start()
        run_folder, trackers, graph = RunFolder.create(config), open_trackers(config), empty_graph()
        async with (
            iteration_runs(embodyflow.orchestration.run.iterations.iteration.iteration) as runs,
            open_artifacts(run_id) as artifacts,
        ):
            stages = Stages(run_folder, Ledger(run_folder.ledger_path), keep_checkpoints=2, repeatable_iterations=2)
            shared = session, run_folder, trackers, graph, runs, stages, artifacts, Turns(0)
            sources = WholeIterations(session), BetweenIterations(), FixedNumber(config), ClusterWatch()
            CURRENT_RUN.set(run := Run(*shared, *sources))
            await session.publish_weights(0)
            one_task_run = config.pipeline.model_copy(update={"task_runs": "iteration"})
            configs = {"ours": config, "one": config.model_copy(update={"pipeline": one_task_run})}
            spent: dict[str, float] = defaultdict(float)
            for name, owner in TIMED.items():
                setattr(owner, name, timed(getattr(owner, name), name, spent))
            index = 0
            while block := (await asyncio.to_thread(sys.stdin.readline)).split():
                records = []
                for _ in range(int(block[1])):
                    if block[0] == "raw":
                        records.append({"raw": raw_iteration(run_id, graph)})
                    elif block[0] == "plain":
                        records.append(await plain_iteration())
                    else:
                        index += 1
                        session.config = configs[block[0]]
                        records.append(await our_iteration(index, block[0], run, spent))
                        report_progress(run, index)
                print(json.dumps(records), flush=True)


def timed(function: Callable[..., Any], name: str, spent: dict[str, float]) -> Callable[..., Any]:
    @wraps(function, updated=())
    async def call(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return await function(*args, **kwargs)
        finally:
            spent[name] += time.perf_counter() - started

    return call


async def our_iteration(index: int, kind: str, run: Run, spent: dict[str, float]) -> dict[str, float]:
    spent.clear()
    started, cpu = time.perf_counter(), time.process_time()
    await embodyflow.orchestration.run.iterations.iteration.run_iteration(run, index)
    run.turns.mark_finished(index)
    total = time.perf_counter() - started
    if kind == "one":
        return {"one": total, "one, beyond Ray and commit": total - spent["run_node"] - spent["commit"]}
    return {
        "ours": total,
        "subflow run": total - spent["submit_node"] - spent["commit"],
        "node task runs": spent["submit_node"] - spent["run_node"],
        "Ray": spent["run_node"],
        "commit": spent["commit"],
        "client CPU": time.process_time() - cpu,
    }


@task(cache_policy=NO_CACHE, persist_result=False)
async def nothing() -> None:
    pass


@flow(persist_result=False, validate_parameters=False)
async def seven_times_nothing() -> None:
    for _ in range(7):
        await nothing()


async def plain_iteration() -> dict[str, float]:
    started = time.perf_counter()
    await seven_times_nothing()
    return {"plain": time.perf_counter() - started}


def raw_iteration(run_id: str, graph: TaskGraph) -> float:
    """Call the workers in a loop without any framework; each call gets the row of the previous one."""
    workers = {name: ray.get_actor(f"{run_id}/{name}/0") for name in ("rollout", "trainer")}
    started = time.perf_counter()
    group = "rollout"
    parents: tuple[RankInput, ...] = ()
    for node_id in graph.get_execution_order():
        node = graph.nodes[node_id]
        group = "trainer" if node.node_type is NodeType.MODEL_TRAIN else group
        call = NodeCall(NodeWork(node_id, node.executable_ref, group, 0), seed=0, parents=parents)
        result: NodeResult = ray.get(workers[group].run_node.remote(call))
        assert result.shard is not None
        parents = (RankInput((Slice(result.shard, 0, 1),), 0, 1),)
    return time.perf_counter() - started


# ---- the servers


@contextmanager
def prefect_server(folder: Path, database: str | None) -> Iterator[tuple[str, psutil.Process]]:
    """Run a Prefect server with our settings; yield its API address and its process.

    Raises:
        TimeoutError: The server did not answer in time.
    """
    env = {**os.environ, **NO_TELEMETRY, **BATCHED_WRITES, "PREFECT_HOME": str(folder)}
    if database:
        env["PREFECT_API_DATABASE_CONNECTION_URL"] = database
    with listen_on(0) as listener:
        port, command, descriptors = listener.getsockname()[1], server_command(listener), [listener.fileno()]
        process = start_process(command, log=folder / "server.log", env=env, cwd=ROOT, descriptors=descriptors)
    try:
        url = f"http://127.0.0.1:{port}/api"
        wait_until_healthy(f"{url}/health", seconds=120.0)
        yield url, process
    finally:
        stop_processes([process], grace=10)


def wait_until_healthy(url: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:  # the server does not listen yet
            time.sleep(0.2)
    raise TimeoutError(f"{url} did not answer within {seconds:g} s")


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """Run our own Postgres server; yield its address.

    Raises:
        FileNotFoundError: Postgres is not installed.
    """
    found = shutil.which("postgres") or max(map(str, Path("/usr/lib/postgresql").glob("*/bin/postgres")), default="")
    if not found:
        raise FileNotFoundError("the program `postgres` is not installed (package postgresql)")
    programs, data, port = Path(found).resolve().parent, folder / "data", free_port(0)
    as_user: list[str] = []
    if os.geteuid() == 0:  # Postgres refuses to run as root
        as_user = ["runuser", "-u", "postgres", "--"]
        owner = pwd.getpwnam("postgres")
        os.chown(folder, owner.pw_uid, owner.pw_gid)

    def postgres_program(name: str, *options: str) -> None:
        command = [*as_user, str(programs / name), "--pgdata", str(data), *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder)

    postgres_program("initdb", "--username=postgres", "--auth=trust")
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder}"
    postgres_program("pg_ctl", "start", "--wait", "--log", str(folder / "log"), "--options", options)
    try:
        yield f"postgresql+asyncpg://postgres@127.0.0.1:{port}/postgres"
    finally:
        postgres_program("pg_ctl", "stop", "--mode=fast")


# ---- the race


class Contender:
    """A child process that runs blocks of iterations on demand.

    Args:
        name: Name of the database.
        folder: Folder for the process's files.
        api: Address of its Prefect server.
        server: Process of that server.
        iterations: Maximum number of iterations of ours.
    """

    def __init__(self, name: str, folder: Path, api: str, server: psutil.Process, iterations: int) -> None:
        self.name, self._server = name, server
        env = {**os.environ, **NO_TELEMETRY, "PREFECT_API_URL": api, "PREFECT_HOME": str(folder / "client")}
        self._log = folder / f"{name}.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__, "--contend", name.lower(), str(folder), str(iterations)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=env,
                cwd=ROOT,
            )

    def run(self, kind: str, count: int) -> list[dict[str, float]]:
        """Run a block; return the seconds of each iteration by part."""
        assert self._process.stdin and self._process.stdout
        cpu = self._server_cpu()
        print(kind, count, file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the {self.name} contender failed:\n{self._log.read_text()[-3000:]}")
        server_cpu = (self._server_cpu() - cpu) / count
        return [record | ({"server CPU": server_cpu} if kind == "ours" else {}) for record in json.loads(line)]

    def close(self) -> None:
        """End the process."""
        try:
            self._process.communicate("\n", timeout=60)
        finally:
            self._process.kill()  # does nothing if the process has ended

    def _server_cpu(self) -> float:
        family = [self._server, *self._server.children(recursive=True)]
        return sum(sum(process.cpu_times()[:2]) for process in family)


def race(rounds: int, block: int, with_postgres: bool) -> dict[str, list[dict[str, float]]]:
    """Return the records of all iterations by database."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        folder.chmod(0o755)
        databases: dict[str, str | None] = {"SQLite": None}
        if with_postgres:
            try:
                (folder / "postgres").mkdir()
                databases["Postgres"] = stack.enter_context(postgres(folder / "postgres"))
            except FileNotFoundError as error:
                print(f"skipping Postgres: {error}")
        ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
        stack.callback(ray.shutdown)
        os.environ |= {"RAY_ADDRESS": ray.get_runtime_context().gcs_address, "RAY_AUTH_MODE": "token"}
        contenders = []
        for name, database in databases.items():
            (home := folder / name).mkdir(exist_ok=True)
            api, server = stack.enter_context(prefect_server(home, database))
            contenders.append(Contender(name, home, api, server, 2 * (rounds * block + 3)))
            stack.callback(contenders[-1].close)
        for contender in contenders:
            for kind in KINDS:
                contender.run(kind, 3)
        records: dict[str, list[dict[str, float]]] = {contender.name: [] for contender in contenders}
        for turn in range(rounds):
            for contender in contenders if turn % 2 else reversed(contenders):
                for kind in KINDS:
                    records[contender.name] += contender.run(kind, block)
        return records


def summarize(records: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return median, 90th percentile and mean in ms of each timed part."""
    summary = {}
    for name in dict.fromkeys(name for record in records for name in record):
        values = [1e3 * record[name] for record in records if name in record]
        summary[name] = {
            "median": statistics.median(values),
            "p90": statistics.quantiles(values, n=10)[-1],
            "mean": statistics.fmean(values),
        }
    return summary


def by_block(records: list[dict[str, float]], block: int) -> dict[str, list[float]]:
    """Return the median milliseconds of an iteration of each kind, block by block."""
    values = {kind: [1e3 * record[kind] for record in records if kind in record] for kind in KINDS}
    starts = {kind: range(0, len(each), block) for kind, each in values.items()}
    return {
        kind: [round(statistics.median(each[start : start + block]), 2) for start in starts[kind]]
        for kind, each in values.items()
    }


def job_seconds(run_folder: Path) -> float:
    """Return the median seconds of an iteration of a real run."""
    lines = map(json.loads, (run_folder / "metrics.jsonl").read_text().splitlines())
    return float(
        statistics.median(line["perf/iteration_seconds"] for line in lines if "perf/iteration_seconds" in line)
    )


def show(results: dict[str, dict[str, dict[str, float]]], job: float | None) -> None:
    for database, summary in results.items():
        print(f"\n{database}: ms per iteration of seven empty nodes" + f"{'median':>11}{'p90':>9}{'mean':>9}")
        for name, values in summary.items():
            label = KINDS.get(name, f"    {name}")
            print(f"{label:<50}" + "".join(f"{values[key]:9.1f}" for key in ("median", "p90", "mean")))
        ours, raw, plain = (summary[kind]["median"] for kind in ("ours", "raw", "plain"))
        print(f"ours/raw {ours / raw:.1f}; {ours - raw:.0f} ms more; target {TARGET_MS:g} ms: {ours <= TARGET_MS}")
        print(f"ours/(plain Prefect + raw Ray) {ours / (plain + raw):.2f}")
        if job is not None:
            share = (ours - raw) / 1e3 / job
            print(f"{share:.1%} of an iteration of {job:.2f} s; target {TARGET_SHARE:.0%}: {share < TARGET_SHARE}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--block", type=int, default=15, help="iterations per block")
    parser.add_argument("--job", type=Path, help="folder of a run to compare with")
    parser.add_argument("--quick", action="store_true", help="six blocks of five iterations, without Postgres")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--contend", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.contend:
        run_id, folder, iterations = args.contend
        asyncio.run(contend(run_id, folder, int(iterations)))
        return
    exit_on_signals()
    started = time.perf_counter()
    job = job_seconds(args.job) if args.job else None
    rounds, block = (6, 5) if args.quick else (args.rounds, args.block)
    race_records = race(rounds, block, with_postgres=not args.quick)
    results = {name: summarize(records) for name, records in race_records.items()}
    show(results, job)
    print(f"{time.perf_counter() - started:.0f} s")
    settings = {"rounds": rounds, "block": block, "job_iteration_seconds": job, "cpus": os.cpu_count()}
    args.output.parent.mkdir(exist_ok=True)
    blocks = {name: by_block(records, block) for name, records in race_records.items()}
    document = {"settings": settings, "milliseconds": results, "milliseconds_per_block": blocks}
    args.output.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
