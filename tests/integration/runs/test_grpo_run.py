"""Complete runs of GRPO with real flows, Ray and simulator, at the smallest size that still trains."""

import gzip
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest
from collectors import Collector, collector
from perfetto import read_by_perfetto
from small_runs import SMALL, TWO_WORKERS, Runs
from traces import Trace, checked_trace
from waiting import finish

pytestmark = pytest.mark.integration

WORDS = ("iterations=3", TWO_WORKERS)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("grpo"))


@pytest.fixture(scope="module")
def collected() -> Iterator[Collector]:
    """What the run ``first`` sends, which is there once it has run."""
    with collector() as found:
        yield found


@pytest.fixture(scope="module")
def first(runs: Runs, collected: Collector) -> str:
    """Run with a trace, a collector of its spans and a profile of iteration 2; return its output."""
    words = ("tracking.trace=true", f"tracking.otlp.endpoint={collected.address}", "trainer.profile.iterations=[2]")
    return runs.run("first", *WORDS, *words)


@pytest.mark.core
def test_a_run_leaves_its_records_and_no_process(runs: Runs, first: str) -> None:
    lines = first.strip().splitlines()
    assert any(line.startswith("success_rate before=") and "seed=1" in line for line in lines)
    assert any(line == f"run_dir={runs.root / 'first'}" for line in lines)
    summary = runs.summary("first")
    needed = {"run_id", "success_rate_before", "success_rate_after", "num_goals", "seed", "train_seconds"}
    assert needed | {"iterations", "weights_digest"} <= set(summary)
    assert summary["num_goals"] == 4 and summary["iterations"] == 3
    folder = runs.root / "first"
    assert (folder / "policy" / "model.safetensors").is_file()
    assert (folder / "plots" / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert list((folder / "tensorboard").glob("events*"))
    runs.assert_nothing_runs(seconds=10)


@pytest.mark.core
def test_a_trace_has_every_node_and_the_way_of_the_rows(runs: Runs, first: str) -> None:
    assert_traced(checked_trace(runs.root / "first" / "trace.json"))


def test_perfetto_reads_the_trace(runs: Runs, first: str) -> None:
    path = runs.root / "first" / "trace.json"
    with read_by_perfetto(path) as perfetto:
        perfetto.assert_has(checked_trace(path))


@pytest.mark.core
def test_a_profile_has_nodes_and_operations_of_its_iteration(runs: Runs, first: str) -> None:
    folder = runs.root / "first" / "profiles"
    assert f"profiles of iteration 2: {folder}" in (runs.root / "first" / "run.log").read_text()
    [path] = folder.iterdir()
    assert path.name == "iteration-000002-rank-0.json.gz"
    with gzip.open(path) as file:
        names = Counter(event["name"] for event in json.load(file)["traceEvents"] if event["ph"] == "X")
    assert [names[node] for node in ("old_log_prob", "ref_log_prob", "train_actor")] == [1, 1, 1]
    assert names["aten::addmm"] > 0 and names["Optimizer.step#AdamW.step"] > 0


@pytest.mark.core
def test_a_collector_gets_the_trace_with_the_ids_of_prefect(runs: Runs, first: str, collected: Collector) -> None:
    flow_run = UUID((runs.root / "first" / "flow_run").read_text())
    by_id = collected.by_id()
    assert {span.trace_id for span in collected.spans} == {flow_run.hex}
    local = checked_trace(runs.root / "first" / "trace.json")
    assert Counter(span.name for span in collected.spans) == Counter(each.name for each in local.slices)
    [root] = [span for span in collected.spans if not span.parent_id]
    assert (root.name, root.attributes["prefect.run.id"]) == ("run", str(flow_run))
    for span in collected.spans:
        if span is not root:
            parent = by_id[span.parent_id]
            assert parent.begin <= span.begin <= span.end <= parent.end, (span, parent)
    task_runs = {each.arguments["task_run"] for each in local.slices if each.category == "node"}
    assert task_runs <= {span.attributes.get("prefect.run.id") for span in collected.spans}
    for name in ("rollout", "train_actor"):
        calls = [span for span in collected.named(name) if "embodyflow.rank" in span.attributes]
        parents = [collected.parent(span) for span in calls]
        of_calls = {(parent.name, parent.attributes["prefect.run.type"]) for parent in parents}
        assert len(calls) == (6 if name == "rollout" else 3) and of_calls == {(name, "task")}
    steps = [span for span in collected.named("step") if span.attributes.get("embodyflow.iteration")]
    assert {span.attributes["embodyflow.node"] for span in steps} >= {"rollout"}
    assert {collected.parent(span).attributes["embodyflow.role"] for span in steps} == {"rollout"}


def assert_traced(trace: Trace) -> None:
    """Check that the trace has every node of every iteration, in the flow and on each rank, and the way of the rows."""
    nodes = ("rollout", "sampling", "reward", "advantage", "old_log_prob", "ref_log_prob", "train_actor")
    for name in nodes:
        spans = trace.named(name)
        assert [each.arguments["iteration"] for each in spans if each.process == "flow"] == [1, 2, 3]
        on_trainer = name in nodes[4:]
        ranks = ["trainer 0"] * 3 if on_trainer else ["rollout 0"] * 3 + ["rollout 1"] * 3
        assert sorted(each.process for each in spans if each.process != "flow") == ranks
    arrows = {(start.around[0], end.around[0]) for start, end in trace.arrows if start.around and end.around}
    assert {("rollout", "sampling"), ("reward", "advantage"), ("old_log_prob", "ref_log_prob")} <= arrows
    assert {"publish weights", "write checkpoint", "flush checkpoint", "iteration 3", "commit"} <= {
        each.name for each in trace.slices if each.process == "flow"
    }
    assert {("act", "policy"), ("step", "environment")} <= {
        (each.name, each.category) for each in trace.slices if "rollout" in each.around
    }
    assert not [each for each in trace.slices if "unfinished" in each.arguments or "error" in each.arguments]


@pytest.mark.slow
def test_two_trainer_ranks_agree_with_one(runs: Runs, first: str, prefect_api: str, ray_env: dict[str, str]) -> None:
    from safetensors.numpy import load_file

    runs.served_by(prefect_api, **ray_env).run("two-ranks", *WORDS, "trainer.num_ranks=2")
    one, two = (load_file(runs.root / name / "policy" / "model.safetensors") for name in ("first", "two-ranks"))
    assert max(abs(one[name] - two[name]).max() for name in one) < 1e-4


@pytest.mark.core
def test_a_resumed_run_gives_the_same_result(runs: Runs, first: str, prefect_api: str) -> None:
    """A run with the same seed, without a trace and a profile, is killed in its second iteration and resumed."""
    process = runs.start(*SMALL, f"run_root={runs.root}", "run_id=killed", *WORDS)
    checkpoint = runs.root / "killed" / "checkpoints" / "iteration-000001"
    deadline = time.monotonic() + 200
    while not checkpoint.exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert checkpoint.exists()
    runs.assert_nothing_runs(seconds=30)
    runs.served_by(prefect_api).resume("killed", f"run_root={runs.root}")
    runs.assert_same_training("killed", "first")
    assert runs.metrics("killed") == runs.metrics("first")


@pytest.mark.parametrize(
    ("send", "number"),
    [(os.killpg, signal.SIGINT), (os.kill, signal.SIGTERM)],
    ids=["Ctrl-C", "SIGTERM"],
)
def test_a_signal_ends_every_process(
    runs: Runs, send: Callable[[int, signal.Signals], None], number: signal.Signals
) -> None:
    """A terminal sends Ctrl-C to all of its foreground processes, including the server that Prefect started."""
    run_id = f"stopped-{number.name.lower()}"
    words = (f"run_root={runs.root}", f"run_id={run_id}", "iterations=50")
    process = runs.start(*SMALL, *words, process_group=0)
    deadline = time.monotonic() + 200
    while not (runs.root / run_id / "checkpoints" / "iteration-000000").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert process.poll() is None, "the run ended before the signal"
    send(process.pid, number)
    process.communicate(timeout=15)
    # After SIGTERM, Prefect may end a flow with its own exit code, 15.
    assert process.returncode in {signal.SIGINT: (130,), signal.SIGTERM: (15, 130, 143)}[number]
    runs.assert_nothing_runs(seconds=10)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_ctrl_c_leaves_nothing_at_any_time(runs: Runs, seed: int) -> None:
    """During imports, the start of Ray or Prefect's server, demonstrations, or iterations."""
    words = (f"run_root={runs.root}", f"run_id=stopped-{seed}", "iterations=50")
    process = runs.start(*SMALL, *words, process_group=0)
    time.sleep(random.Random(seed).uniform(0.2, 25.0))
    assert process.poll() is None, "the run ended before the signal"
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=15)
    assert process.returncode != 0
    runs.assert_nothing_runs(seconds=10)


def test_a_failing_node_fails_the_run_and_leaves_no_process(runs: Runs, tmp_path: Path, prefect_api: str) -> None:
    (tmp_path / "broken_pipeline.py").write_text(
        "from pipelines import NodeRole, NodeType, Pipeline\n"
        "def fail(batch, config=None, **kwargs):\n"
        "    raise ZeroDivisionError('planted')\n"
        "def graph():\n"
        "    p = Pipeline('broken', 'fails in its second node')\n"
        "    p.add_node('rollout', func='tasks:generate', deps=[], node_type=NodeType.MODEL_INFERENCE,\n"
        "               node_role=NodeRole.ROLLOUT)\n"
        "    p.add_node('fail', func='broken_pipeline:fail', deps=['rollout'])\n"
        "    return p.build()\n"
    )
    words = ["pipeline.custom_fn=broken_pipeline:graph", "iterations=1"]
    own_runs = runs.served_by(prefect_api, PYTHONPATH=str(tmp_path))
    process = own_runs.start(*SMALL, f"run_root={runs.root}", "run_id=broken", *words)
    output = finish(process)
    assert process.returncode == 1
    assert "ZeroDivisionError" in output and "planted" in output
    runs.assert_nothing_runs(seconds=10)
