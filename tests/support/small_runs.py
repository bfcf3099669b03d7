"""Runs of the smallest size that still trains, each a process of its own."""

import copy
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
TWO_WORKERS = "rollout.num_workers=2"
"""For the runs that are about several of them; each takes seconds to start."""
SMALL = [
    "experiment=embodied",  # the first, for those who name it otherwise
    *("rollout.num_workers=1", "rollout.num_groups=4", "rollout.group_size=4", "rollout.envs_per_worker=8"),
    *("env.max_steps=40", "evaluation.num_goals=4", "evaluation.video=false", "warm_start.num_demos=4"),
    *("warm_start.steps=60", "policy.hidden_size=64"),
]
SMALL_LANGUAGE = [
    *("experiment=math", "policy.scratch.hidden_size=32", "policy.scratch.num_hidden_layers=1"),
    *("rollout.num_groups=16", "rollout.group_size=4", "warm_start.steps=100", "warm_start.num_demos=400"),
    *("evaluation.num_prompts=16", "evaluation.num_shown=3", "trainer.num_minibatches=1"),
    *("trainer.schedule.name=constant", "trainer.micro_batch_tokens=500", "filter.drop_uniform=false"),
]
SMALL_CONTROL = [
    *("experiment=reacher", "rollout.envs_per_worker=2", "rollout.num_steps=120", "trainer.epochs=2"),
    *("critic.epochs=2", "trainer.num_minibatches=4"),
]


def _heed_sigint() -> None:
    """Undo what a shell does to a command it starts in the background: it ignores Ctrl-C, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Runs:
    """Starts runs in one folder, with a Prefect home of their own.

    Args:
        folder: for all that they write.
        api_url: of a Prefect server; without one each run starts its own, which takes seconds.
    """

    def __init__(self, folder: Path, api_url: str | None = None) -> None:
        self.root, self.seconds = folder / "runs", 240.0  # that a run may take
        self.env = os.environ | {"PREFECT_HOME": str(folder / "prefect"), "EMBODYFLOW_TEST": str(folder)}
        for name in ("PREFECT_API_URL", "RAY_ADDRESS"):
            self.env.pop(name, None)
        if api_url is not None:
            self.env["PREFECT_API_URL"] = api_url

    def served_by(self, api_url: str, **env: str) -> "Runs":
        """Return the same runs, told to that server, with more in their environment."""
        other = copy.copy(self)
        other.env = self.env | {"PREFECT_API_URL": api_url} | env
        return other

    def start(self, *words: str, flow: str = "grpo", process_group: int | None = None) -> subprocess.Popen[str]:
        """Start one; ``process_group=0`` has it lead a group, as a command in a terminal does."""
        command = [sys.executable, "-m", f"flows.{flow}", *words]
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
        process = self.start(*SMALL, f"run_root={self.root}", f"run_id={run_id}", *words, flow=flow)
        output, _ = process.communicate(timeout=self.seconds)
        assert process.returncode == 0, output[-4000:]
        return output

    def resume(self, run_id: str, *words: str, flow: str = "grpo") -> None:
        # The root of the runs is looked up in the experiment's configuration, so it is not an override here.
        process = self.start(f"resume={run_id}", *words, flow=flow)
        output, _ = process.communicate(timeout=self.seconds)
        assert process.returncode == 0, output[-4000:]

    def summary(self, run_id: str) -> dict[str, object]:
        return json.loads((self.root / run_id / "summary.json").read_text())

    def records(self, run_id: str) -> list[dict[str, Any]]:
        lines = (self.root / run_id / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def metrics(self, run_id: str) -> list[dict[str, Any]]:
        """Return the records without their timings."""
        return [{k: v for k, v in r.items() if not k.startswith("perf/")} for r in self.records(run_id)]

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
