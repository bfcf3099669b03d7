"""Complete runs of an agent with real flows, Ray, tools and model."""

import pytest
from agent_jobs import WORDS, run_words
from perfetto import read_by_perfetto
from small_runs import Runs
from support_path import SUPPORT_PATH
from traces import checked_trace
from waiting import finish

pytestmark = [pytest.mark.integration, pytest.mark.slow]

INTERVIEW = run_words(
    *WORDS, "rollout.group_size=8", "rollout.agent.tools=[{function: agent_jobs:ask_again, timeout: 60}]"
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, prefect_api: str) -> Runs:
    return Runs(tmp_path_factory.mktemp("agent"), prefect_api)


def run(runs: Runs, run_id: str, **env: str) -> list[str]:
    """Run two iterations; return the places that the tool was asked for, in order."""
    asked = runs.root.parent / f"asked-{run_id}"
    mine = runs.served_by(runs.env["PREFECT_API_URL"], PYTHONPATH=SUPPORT_PATH, ASKED=str(asked), **env)
    process = mine.start(*INTERVIEW, f"run_id={run_id}", "iterations=2", f"run_root={runs.root}")
    output = finish(process, 400)
    assert process.returncode == 0, output[-4000:]
    return asked.read_text().splitlines()


@pytest.mark.timeout(900)
def test_a_rollout_worker_killed_in_mid_episode_replays_its_calls(runs: Runs) -> None:
    """The tool answers differently each time that it is called, and ends the worker's process in mid-episode."""
    expected = run(runs, "undisturbed")
    kill_at = len(expected) // 3  # after the evaluation, in the first iteration's episodes

    asked = run(runs, "killed", KILL_AT=str(kill_at))

    assert (runs.root.parent / "asked-killed.killed").exists()
    assert asked == expected
    runs.assert_same_training("killed", "undisturbed")


def test_perfetto_reads_the_trace_of_a_calculator_job(runs: Runs) -> None:
    words = run_words("warm_start.steps=60", "rollout.num_workers=2")
    runs.end(runs.start(*words, "run_id=traced", "iterations=2", "tracking.trace=true", f"run_root={runs.root}"))
    path = runs.root / "traced" / "trace.json"
    trace = checked_trace(path)
    assert {"rollout", "reward", "train_actor"} <= {each.name for each in trace.slices}
    with read_by_perfetto(path) as perfetto:
        perfetto.assert_has(trace)
