"""Complete runs of the smallest size that still trains in every iteration, each in a separate process."""

import copy
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from network import Machine
from waiting import RUN_SECONDS, eventually, finish

ROOT = Path(__file__).resolve().parents[3]
TWO_WORKERS = "rollout.num_workers=2"
"""For tests that need several rollout workers. Each one takes seconds to start."""
# Long episodes and noise that is shared by the actions of a chunk give groups with both outcomes. With this seed every
# iteration has such groups, at least up to iteration 8; :func:`assert_trained` checks it.
SMALL = [
    "experiment=embodied",  # the first, so that tests that pass it separately can use SMALL[1:]
    *("seed=1", "rollout.num_workers=1", "rollout.num_groups=4", "rollout.group_size=4", "rollout.envs_per_worker=8"),
    *("rollout.chunk_correlation=1", "env.max_steps=80", "evaluation.num_goals=4", "evaluation.video=false"),
    *("warm_start.num_demos=4", "warm_start.steps=60", "policy.hidden_size=64"),
]
SMALL_LANGUAGE = [
    *("experiment=math", "policy.scratch.hidden_size=32", "policy.scratch.num_hidden_layers=1"),
    *("rollout.num_groups=16", "rollout.group_size=4", "warm_start.num_demos=400"),
    *("warm_start.steps=300", "warm_start.until=null", "warm_start.batch_size=32", "warm_start.learning_rate=6e-3"),
    *("evaluation.num_prompts=16", "evaluation.num_shown=3", "trainer.num_minibatches=1"),
    *("trainer.schedule.name=constant", "trainer.micro_batch_tokens=500", "filter.drop_uniform=false"),
]
SMALL_CONTROL = [
    *("experiment=reacher", "rollout.envs_per_worker=2", "rollout.num_steps=120", "trainer.epochs=2"),
    *("critic.epochs=2", "trainer.num_minibatches=4"),
]
SMALL_SAC = [
    *("experiment=pendulum", "rollout.num_workers=2", "rollout.envs_per_worker=2", "rollout.num_steps=30"),
    *("env.max_steps=50", "policy.hidden_size=32", "off_policy.batch_size=32", "off_policy.replay_capacity=200"),
]


def training_records(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records of training iterations, without those of evaluations."""
    return [record for record in records if "digests" in record]


def assert_trained(records: Sequence[dict[str, Any]]) -> None:
    """Check that every iteration of a run changed the weights. Comparing two runs proves nothing otherwise.

    Args:
        records: Lines of ``metrics.jsonl``.
    """
    lines = training_records(records)
    assert lines, "the run has no training iterations"
    for line in lines:
        assert line.get("groups/mixed_fraction", 1.0) > 0, f"iteration {line['iteration']} has no mixed groups"
        assert line["train/optimizer_steps"] > 0 and line["train/grad_norm"] > 0, f"no step in {line['iteration']}"
    assert len({line["weights_digest"] for line in lines}) == len(lines), "an iteration left the weights as they were"


def straight_and_resumed(runs: "Runs", *words: str, flow: str) -> tuple[list[str], list[str]]:
    """Play three iterations, in a run ``straight`` and in one ``resumed`` that ends after two; return their digests."""
    for run_id, iterations in (("straight", 3), ("resumed", 2)):
        process = runs.start(*words, f"run_root={runs.root}", f"run_id={run_id}", f"iterations={iterations}", flow=flow)
        output, _ = process.communicate(timeout=900)
        assert process.returncode == 0, output[-4000:]
    runs.resume("resumed", f"run_root={runs.root}", "iterations=3", flow=flow)
    straight, resumed = (
        [record["weights_digest"] for record in training_records(runs.records(run_id))]
        for run_id in ("straight", "resumed")
    )
    return straight, resumed


def _heed_sigint() -> None:
    """Restore the default handler: a shell ignores Ctrl-C in background commands, and their children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Runs:
    """Starts runs in one folder, with their own Prefect home.

    Args:
        folder: Folder for everything that they write.
        api_url: Address of a Prefect server's API. Without one each run starts a server, which takes seconds.
    """

    def __init__(self, folder: Path, api_url: str | None = None) -> None:
        self.root, self._python = folder / "runs", [sys.executable, "-m"]
        self.env = os.environ | {"PREFECT_HOME": str(folder / "prefect"), "EMBODYFLOW_TEST": str(folder)}
        for name in ("PREFECT_API_URL", "RAY_ADDRESS"):
            self.env.pop(name, None)
        if api_url is not None:
            self.env["PREFECT_API_URL"] = api_url

    def served_by(self, api_url: str, **env: str) -> "Runs":
        """Return runs in the same folder that use this server and additional environment variables."""
        other = copy.copy(self)
        other.env = self.env | {"PREFECT_API_URL": api_url} | env
        return other

    def on(self, machine: Machine, **env: str) -> "Runs":
        """Return runs in the same folder that start on another machine, with these environment variables."""
        other = copy.copy(self)
        other._python = machine.command(sys.executable, "-m", "on_own_node", machine.address)
        other.env = self.env | env
        return other

    def begin(self, run_id: str, *words: str) -> subprocess.Popen[str]:
        """Start :data:`SMALL` with further words."""
        return self.start(*SMALL, f"run_root={self.root}", f"run_id={run_id}", *words)

    def end(self, process: subprocess.Popen[str]) -> str:
        """Wait for the end of a run that succeeds; return its output."""
        output = finish(process)
        assert process.returncode == 0, output[-4000:]
        return output

    def start(self, *words: str, flow: str = "grpo", process_group: int | None = None) -> subprocess.Popen[str]:
        """Start a run; with ``process_group=0`` it leads a process group, as a command in a terminal does."""
        command = [*self._python, f"flows.{flow}", *words]
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=self.env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=process_group,
            preexec_fn=_heed_sigint,
        )

    def run(self, run_id: str, *words: str, flow: str = "grpo") -> str:
        """Run :data:`SMALL` with further words to its end; return its output.

        A folder that a repeated test left is removed, since a run refuses one that exists.
        """
        shutil.rmtree(self.root / run_id, ignore_errors=True)
        return self.end(self.start(*SMALL, f"run_root={self.root}", f"run_id={run_id}", *words, flow=flow))

    def wait_for_commit(self, run_id: str, process: subprocess.Popen[str], iteration: int = 1) -> None:
        """Wait until a run has committed an iteration.

        Raises:
            AssertionError: The run has ended before.
        """
        committed = self.root / run_id / "checkpoints" / f"iteration-{iteration:06d}"
        eventually(lambda: committed.exists() or process.poll() is not None, RUN_SECONDS)
        assert committed.exists(), finish(process, 30)[-4000:]

    def resume(self, run_id: str, *words: str, flow: str = "grpo") -> None:
        """Resume a run to its end; ``words`` must include ``run_root``."""
        self.end(self.start(f"resume={run_id}", *words, flow=flow))

    def summary(self, run_id: str) -> dict[str, object]:
        return json.loads((self.root / run_id / "summary.json").read_text())

    def records(self, run_id: str) -> list[dict[str, Any]]:
        lines = (self.root / run_id / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def metrics(self, run_id: str) -> list[dict[str, Any]]:
        """Return the records without their timings."""
        return [{k: v for k, v in r.items() if not k.startswith("perf/")} for r in self.records(run_id)]

    def assert_same_training(self, run_id: str, reference: str) -> None:
        """Check that two runs trained bit-identically, and that they trained in every iteration."""
        expected = training_records(self.metrics(reference))
        assert_trained(expected)
        assert training_records(self.metrics(run_id)) == expected
        assert self.summary(run_id)["weights_digest"] == self.summary(reference)["weights_digest"]

    def processes(self) -> list[psutil.Process]:
        """Return all live processes of runs in this folder, including descendants."""
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
