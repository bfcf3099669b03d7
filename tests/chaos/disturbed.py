"""Runs in which a plan has parts die, and what must not differ between such a run and one left in peace."""

import json
from pathlib import Path
from typing import Any

from small_runs import SMALL, SMALL_CONTROL, Runs

from embodyflow.ledger import Ledger

HERE = Path(__file__).parent
WORDS = ("seed=7", "cluster.node_timeout=20")
JOBS = {  # by training flow
    "grpo": (*SMALL, "pipeline.custom_fn=faulty_nodes:graph"),
    "ppo": (*SMALL_CONTROL, "pipeline.custom_fn=faulty_nodes:control_graph"),
}
ITERATIONS = ("iterations=3",)
KILLED = -9


def fault(node: str, part: str, iteration: int = 2, signal: str = "SIGKILL", **more: Any) -> dict[str, Any]:
    """Return a line of a plan; see :mod:`faulty_nodes`."""
    return {"iteration": iteration, "node": node, "part": part, "signal": signal, **more}


class Disturbed:
    """Runs of a job in which a plan has parts die.

    Args:
        folder: for plans and runs.
        api_url: of a Prefect server.
        flow: key of ``JOBS``.
    """

    def __init__(self, folder: Path, api_url: str, flow: str = "grpo") -> None:
        self._flow = flow
        self.runs = Runs(folder).served_by(api_url, PYTHONPATH=str(HERE))
        self._plans = folder

    def run(self, run_id: str, *faults: dict[str, Any], words: tuple[str, ...] = ITERATIONS) -> str:
        """Run it, and resume it as often as its driver dies; return all that was printed."""
        plan = self._plans / f"{run_id}.json"
        plan.write_text(json.dumps(faults))
        runs = self.runs.served_by(self.runs.env["PREFECT_API_URL"], EMBODYFLOW_FAULTS=str(plan))
        process = runs.start(
            *(*JOBS[self._flow], *WORDS, *words, f"run_root={runs.root}", f"run_id={run_id}"), flow=self._flow
        )
        output, _ = process.communicate(timeout=280)
        while process.returncode == KILLED:
            runs.assert_nothing_runs(seconds=30)
            process = runs.start(f"resume={run_id}", f"run_root={runs.root}", flow=self._flow)
            more, _ = process.communicate(timeout=280)
            output += more
        assert process.returncode == 0, output[-6000:]
        return output

    def outlives(
        self, undisturbed: tuple[Any, ...], run_id: str, *faults: dict[str, Any], words: tuple[str, ...] = ITERATIONS
    ) -> str:
        """Run it with faults that all happen, and hold its outcome against that of a run left in peace."""
        output = self.run(run_id, *faults, words=words)
        assert self.happened(run_id) == len(faults)
        assert self.outcome(run_id) == undisturbed
        return output

    def happened(self, run_id: str) -> int:
        """Return how many faults of a run's plan there were."""
        return len(list(self._plans.glob(f"{run_id}.json.*")))

    def outcome(self, run_id: str) -> tuple[Any, ...]:
        """Return all that a disturbance must not change: weights, ledger and metrics."""
        ledger = Ledger(self.runs.root / run_id / "ledger.jsonl").digest()
        return self.runs.summary(run_id)["weights_digest"], ledger, self.runs.metrics(run_id)
