"""Runs with planned faults, and the outcome that must equal that of a run without faults."""

import json
import os
from pathlib import Path
from typing import Any

from agent_jobs import WORDS as INTERVIEW_WORDS
from agent_jobs import run_words
from language_jobs import TINY
from small_runs import SMALL, SMALL_CONTROL, SMALL_LANGUAGE, SMALL_SAC, TWO_WORKERS, Runs, assert_trained
from support_path import SUPPORT_PATH
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from waiting import finish

from embodyflow.record.ledger import Ledger
from embodyflow.record.run_folder import RunFolder

HERE = Path(__file__).parent
MODULES = os.pathsep.join((str(HERE), SUPPORT_PATH))
WORDS = ("cluster.node_timeout=20",)
NORMALISED = ("policy.normalize_observations=true", "policy.normalize_returns=true")
TOOL = "{function: faulty_agents:ask, timeout: 90}"
INTERVIEW = (*INTERVIEW_WORDS, f"rollout.agent.tools=[{TOOL}]")
KUHN = ("experiment=kuhn", "algorithm=rae", "rollout.max_response_tokens=48")
PROGRAM = HERE / "faulty_agents.py"
PUBLISHED = (
    *("rollout.mode=streaming", "rollout.order=first_ready", "rollout.interrupt.when=published"),
    *("rollout.max_staleness=2", "algorithm.old_log_probs=proximal", "rollout.num_workers=2"),
)
SLOW = ("env.id=slow_metaworld:SlowMetaWorld-v0",)
STREAMED_LANGUAGE = (
    *(word for word in TINY if not word.startswith(("run_id", "iterations"))),
    *("warm_start=null", "filter.drop_uniform=false", "rollout.num_groups=4", "rollout.group_size=4"),
    *("reward=custom", "reward.function.function=faulty_agents:count_digits", "cluster.start_timeout=300"),
)
STREAMED_AGENT = run_words(*INTERVIEW_WORDS, "rollout.agent.tools=[{function: agent_jobs:look_up, timeout: 60}]")
JOBS = {  # training flow and words of each job
    "embodied": ("grpo", (*SMALL, TWO_WORKERS, "pipeline.custom_fn=faulty_nodes:graph")),
    "language": (
        "grpo",
        (*SMALL_LANGUAGE, "rollout.groups_per_call=2", "pipeline.custom_fn=faulty_nodes:language_graph"),
    ),
    "agent": ("grpo", (*run_words(*INTERVIEW), TWO_WORKERS, "pipeline.custom_fn=faulty_nodes:language_graph")),
    "streamed": ("grpo", (*STREAMED_LANGUAGE, *PUBLISHED, "pipeline.custom_fn=faulty_nodes:streamed_graph")),
    "streamed_agent": ("grpo", (*STREAMED_AGENT, *PUBLISHED, "pipeline.custom_fn=faulty_nodes:streamed_graph")),
    "streamed_episodes": (
        "grpo",
        (*SMALL, *SLOW, *PUBLISHED, "pipeline.custom_fn=faulty_nodes:streamed_episodes_graph"),
    ),
    "program": ("grpo", (*run_words("rollout.agent.tools=[]", f"rollout.agent.program=[python,{PROGRAM}]"),)),
    "self_play": (
        "grpo",
        (*run_words(*KUHN), TWO_WORKERS, "pipeline.custom_fn=faulty_nodes:rae_graph"),
    ),
    "off_policy": ("sac", (*SMALL_SAC, "pipeline.custom_fn=faulty_nodes:sac_graph")),
    "control": ("ppo", (*SMALL_CONTROL, *NORMALISED, "seed=7", "pipeline.custom_fn=faulty_nodes:control_graph")),
}
PARTS = ("rollout/0", "rollout/1", "trainer/0", "buffer", "driver", "exception")
"""Parts that fail at every node of a job."""

Outcome = tuple[Any, ...]
ITERATIONS = ("iterations=3",)
KILLED = -9


def fault(
    node: str, part: str | None = None, iteration: int = 2, signal: str = "SIGKILL", **more: Any
) -> dict[str, Any]:
    """Return an entry of a plan; see :mod:`faulty_nodes`."""
    return {"iteration": iteration, "node": node, "part": part, "signal": signal, **more}


class FaultyRuns:
    """Runs of a job with planned faults.

    Args:
        folder: Folder for plans and runs.
        api_url: Address of a Prefect server's API.
        job: Key of ``JOBS``.
    """

    def __init__(self, folder: Path, api_url: str, job: str = "embodied") -> None:
        self._flow, self._job = JOBS[job]
        self.runs = Runs(folder).served_by(api_url, PYTHONPATH=MODULES)
        self._plans = folder

    def run(self, run_id: str, *faults: dict[str, Any], words: tuple[str, ...] = ITERATIONS) -> str:
        """Run the job with faults, and resume it each time its driver is killed; return the output.

        Later words win.
        """
        plan = self._plans / f"{run_id}.json"
        plan.write_text(json.dumps(faults))
        runs = self.runs.served_by(self.runs.env["PREFECT_API_URL"], EMBODYFLOW_FAULTS=str(plan))
        whole = (*self._job, *WORDS, *words, f"run_root={runs.root}", f"run_id={run_id}")
        process = runs.start(*{word.partition("=")[0]: word for word in whole}.values(), flow=self._flow)
        output = finish(process)
        while process.returncode == KILLED:
            runs.assert_nothing_runs(seconds=30)
            process = runs.start(f"resume={run_id}", f"run_root={runs.root}", flow=self._flow)
            output += finish(process)
        assert process.returncode == 0, output[-6000:]
        return output

    def assert_recovers(
        self, undisturbed: tuple[Any, ...], run_id: str, *faults: dict[str, Any], words: tuple[str, ...] = ITERATIONS
    ) -> str:
        """Run the job with faults; check that all of them happened and that the outcome equals the undisturbed one."""
        output = self.run(run_id, *faults, words=words)
        assert self.num_faults(run_id) == len(faults)
        assert self.outcome(run_id) == undisturbed
        return output

    def beside_plan(self, run_id: str, suffix: str) -> Path:
        """Return the path of a file beside a run's plan, which its processes write."""
        return self._plans / f"{run_id}{suffix}"

    def num_faults(self, run_id: str) -> int:
        """Return how many faults of a run's plan have happened."""
        return len(list(self._plans.glob(f"{run_id}.json.*")))

    def outcome(self, run_id: str) -> Outcome:
        """Return everything of a run that a fault must not change."""
        return outcome_of(RunFolder(self.runs.root / run_id))


def outcome_of(folder: RunFolder) -> Outcome:
    """Return everything that a fault must not change: weights, ledger and metrics.

    Also check that the run trained in every iteration, and that the optimizer counted as many updates as the metrics
    report, so none was repeated or skipped.
    """
    metrics = [{k: v for k, v in record.items() if not k.startswith("perf/")} for record in folder.metrics.read()]
    updates = sum(record.get("train/optimizer_steps", 0) for record in metrics)
    assert_trained(metrics)
    assert updates_counted(folder.checkpoints.folder(folder.checkpoints.committed()[-1])) == {updates}
    return json.loads(folder.summary_path.read_text())["weights_digest"], Ledger(folder.ledger_path).digest(), metrics


def updates_counted(checkpoint: Path) -> set[int]:
    """Return the numbers of updates that AdamW counted for the parameters in a checkpoint."""
    state: dict[str, Any] = {}
    reader, planner = FileSystemReader(checkpoint), _EmptyStateDictLoadPlanner()
    _load_state_dict(state, storage_reader=reader, planner=planner, no_dist=True)
    learners = [each for each in state.values() if isinstance(each, dict)]
    moments = [each for learner in learners for each in learner["optimizer"]["state"].values()]
    return {int(each["step"]) for each in moments}
