"""The whole of it: real flows, real Ray, a real simulator, at the smallest size that still trains."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
SMALL = [
    *("experiment=embodied", "rollout.num_groups=4", "rollout.group_size=4", "rollout.envs_per_worker=8"),
    *("env.max_steps=40", "evaluation.num_goals=4", "evaluation.video=false", "warm_start.num_demos=4"),
    *("warm_start.steps=60", "policy.hidden_size=64"),
]


class Runs:
    """Starts runs in one folder, with a Prefect home of their own."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "runs"
        self.env = os.environ | {"PREFECT_HOME": str(folder / "prefect"), "EMBODYFLOW_TEST": str(folder)}
        for name in ("PREFECT_API_URL", "RAY_ADDRESS"):
            self.env.pop(name, None)

    def start(self, *words: str, flow: str = "grpo") -> subprocess.Popen[str]:
        command = [sys.executable, "-m", f"flows.{flow}", *words]
        return subprocess.Popen(
            command, cwd=ROOT, env=self.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def run(self, run_id: str, *words: str, flow: str = "grpo") -> str:
        process = self.start(*SMALL, f"run_root={self.root}", f"run_id={run_id}", *words, flow=flow)
        output, _ = process.communicate(timeout=240)
        assert process.returncode == 0, output[-4000:]
        return output

    def resume(self, run_id: str, *words: str) -> None:
        # The root of the runs is looked up in the experiment's configuration, so it is not an override here.
        process = self.start(f"resume={run_id}", *words)
        output, _ = process.communicate(timeout=240)
        assert process.returncode == 0, output[-4000:]

    def summary(self, run_id: str) -> dict[str, object]:
        return json.loads((self.root / run_id / "summary.json").read_text())

    def metrics(self, run_id: str) -> list[dict[str, object]]:
        lines = (self.root / run_id / "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        return [{k: v for k, v in record.items() if not k.startswith("perf/")} for record in records]

    def processes(self) -> list[psutil.Process]:
        """Every live process that a run in this folder started, however far down."""
        mine = str(self.env["EMBODYFLOW_TEST"])
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("EMBODYFLOW_TEST") == mine and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def assert_nothing_runs(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not left, [process.cmdline() for process in left]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("grpo"))


@pytest.fixture(scope="module")
def first(runs: Runs) -> str:
    return runs.run("first", "iterations=3", "seed=7")


def test_a_run_leaves_its_records_and_no_process(runs: Runs, first: str) -> None:
    lines = first.strip().splitlines()
    assert any(line.startswith("success_rate before=") and "seed=7" in line for line in lines)
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


def test_same_seed_same_weights_and_metrics(runs: Runs, first: str) -> None:
    runs.run("again", "iterations=3", "seed=7")
    assert runs.summary("again")["weights_digest"] == runs.summary("first")["weights_digest"]
    assert runs.metrics("again") == runs.metrics("first")
    assert len({record.get("weights_digest") for record in runs.metrics("first")}) > 2, "the weights never changed"


def test_two_trainer_ranks_agree_with_one(runs: Runs, first: str) -> None:
    from safetensors.numpy import load_file

    runs.run("two-ranks", "iterations=3", "seed=7", "trainer.num_ranks=2")
    one, two = (load_file(runs.root / name / "policy" / "model.safetensors") for name in ("first", "two-ranks"))
    assert max(abs(one[name] - two[name]).max() for name in one) < 1e-4


def test_resumed_run_ends_like_an_uninterrupted_one(runs: Runs, first: str, tmp_path: Path) -> None:
    process = runs.start(*SMALL, f"run_root={runs.root}", "run_id=killed", "iterations=3", "seed=7")
    checkpoint = runs.root / "killed" / "checkpoints" / "iteration-000001"
    deadline = time.monotonic() + 200
    while not checkpoint.exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert checkpoint.exists()
    runs.assert_nothing_runs(seconds=30)
    runs.resume("killed", f"run_root={runs.root}")
    assert runs.summary("killed")["weights_digest"] == runs.summary("first")["weights_digest"]
    assert runs.metrics("killed") == runs.metrics("first")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_ends_every_process(runs: Runs, number: signal.Signals) -> None:
    run_id = f"stopped-{number.name.lower()}"
    process = runs.start(*SMALL, f"run_root={runs.root}", f"run_id={run_id}", "iterations=50", "seed=1")
    deadline = time.monotonic() + 200
    while not (runs.root / run_id / "checkpoints" / "iteration-000000").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert process.poll() is None, "the run ended before it was signalled"
    process.send_signal(number)
    process.communicate(timeout=15)
    # Prefect ends a flow that gets SIGTERM with a code of its own, 15.
    assert process.returncode in {signal.SIGINT: (130,), signal.SIGTERM: (15, 130, 143)}[number]
    runs.assert_nothing_runs(seconds=10)


def test_a_failing_node_fails_the_run_and_leaves_no_process(runs: Runs, tmp_path: Path) -> None:
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
    env = runs.env
    runs.env = env | {"PYTHONPATH": str(tmp_path)}
    words = ["pipeline.custom_fn=broken_pipeline:graph", "iterations=1"]
    process = runs.start(*SMALL, f"run_root={runs.root}", "run_id=broken", *words)
    output, _ = process.communicate(timeout=240)
    runs.env = env
    assert process.returncode == 1
    assert "ZeroDivisionError" in output and "planted" in output
    runs.assert_nothing_runs(seconds=10)
