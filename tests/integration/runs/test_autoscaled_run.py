"""Complete runs whose number of rollout workers changes, with real flows, Ray, tools and model."""

import signal

import pytest
from agent_jobs import WORDS, run_words
from small_runs import Runs, assert_trained
from support_path import SUPPORT_PATH
from waiting import eventually, finish

from embodyflow.record.ledger import Ledger

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1500)]

ITERATIONS = 6
TOOL = "rollout.agent.tools=[{function: agent_jobs:look_up, timeout: 60}]"
ONE = ("rollout.num_workers=1", "rollout.num_groups=4", "rollout.max_staleness=1", "algorithm.old_log_probs=proximal")
# A trainer that waits at all asks for another worker.
TO_TWO = ("max_workers=2", "trainer_wait=0.0001", "rollout_idle=0.99", "patience=1")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, prefect_api: str) -> Runs:
    return Runs(tmp_path_factory.mktemp("autoscale"), prefect_api).served_by(prefect_api, PYTHONPATH=SUPPORT_PATH)


def words_of(runs: Runs, run_id: str, *words: str) -> tuple[str, ...]:
    job = run_words(*WORDS, TOOL, *ONE, *words)
    return (*job, f"run_id={run_id}", f"iterations={ITERATIONS}", f"run_root={runs.root}")


def numbers(runs: Runs, run_id: str) -> dict[int, int]:
    """Return the number of rollout workers of each iteration, which the ledger has once."""
    path = runs.root / run_id / "ledger.jsonl"
    lines = [entry for entry in Ledger(path).entries if entry.kind == "workers"] if path.exists() else []
    assert len({entry.iteration for entry in lines}) == len(lines), "a number is decided once"
    return {entry.iteration: entry.facts["number"] for entry in lines}


def test_a_run_that_is_killed_while_it_grows_ends_with_the_weights_of_one_worker(runs: Runs) -> None:
    process = runs.start(*words_of(runs, "fixed"))
    output = finish(process, 600)
    assert process.returncode == 0, output[-4000:]
    assert_trained(runs.records("fixed"))

    scaled = (f"rollout.autoscale.{word}" for word in TO_TWO)
    process = runs.start(*words_of(runs, "scaled", "rollout.mode=streaming", *scaled))
    assert eventually(lambda: 2 in numbers(runs, "scaled").values() or process.poll() is not None, 600)
    process.send_signal(signal.SIGKILL)  # the second worker is about to start
    finish(process)
    runs.assert_nothing_runs(60)
    before = numbers(runs, "scaled")
    assert before[1] == 1 and before[max(before)] == 2 and len(before) < ITERATIONS

    runs.resume("scaled", f"run_root={runs.root}")
    after = numbers(runs, "scaled")
    assert sorted(after) == list(range(1, ITERATIONS + 1)) and set(after.values()) == {1, 2}
    assert {iteration: after[iteration] for iteration in before} == before
    assert runs.summary("scaled")["weights_digest"] == runs.summary("fixed")["weights_digest"]
    known = {line["iteration"]: line["perf/rollout_workers"] for line in runs.records("scaled") if "digests" in line}
    assert all(known[iteration] == number for iteration, number in after.items())
