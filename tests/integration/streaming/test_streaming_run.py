"""Complete runs that stream groups, with real flows, Ray, tools and model."""

import json

import pytest
from agent_jobs import WORDS, run_words
from small_runs import Runs
from support_path import SUPPORT_PATH
from waiting import finish

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1200)]

AHEAD = ("rollout.max_staleness=1", "algorithm.old_log_probs=proximal")
EVALUATED = 10
"""Episodes of an evaluation, which are numbered from 0 and played again when their worker dies."""
STREAMING = (*AHEAD, "rollout.mode=streaming", "rollout.num_workers=1")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, prefect_api: str) -> Runs:
    return Runs(tmp_path_factory.mktemp("streaming"), prefect_api)


def run(runs: Runs, run_id: str, tool: str, *words: str, **env: str) -> None:
    mine = runs.served_by(runs.env["PREFECT_API_URL"], PYTHONPATH=SUPPORT_PATH, **env)
    tools = f"rollout.agent.tools=[{{function: agent_jobs:{tool}, timeout: 60}}]"
    job = run_words(*WORDS, tools, *words)
    process = mine.start(*job, f"run_id={run_id}", "iterations=3", f"run_root={runs.root}")
    output = finish(process, 600)
    assert process.returncode == 0, output[-4000:]


def test_by_index_the_weights_are_those_of_rollouts_ahead(runs: Runs) -> None:
    run(runs, "ahead", "look_up", *AHEAD, "rollout.num_workers=1")
    run(runs, "streamed", "look_up", *STREAMING)
    assert runs.summary("streamed")["weights_digest"] == runs.summary("ahead")["weights_digest"]


def test_a_worker_that_dies_plays_its_groups_to_their_ends(runs: Runs) -> None:
    """The tool answers differently each time that it is called; the recorded answers count."""
    asked = runs.root.parent / "asked"
    run(runs, "killed", "ask_again", *STREAMING, "rollout.order=first_ready", ASKED=str(asked), KILL_AT="40")
    assert asked.with_suffix(".killed").exists()
    lines = [json.loads(line.partition("\t")[0]) for line in (runs.root / "killed" / "ledger.jsonl").open()]
    selections = [line for line in lines if line["kind"] == "groups"]
    assert [line["iteration"] for line in selections] == [1, 2, 3]
    for line in selections:
        assert all(line["iteration"] - 1 - version <= 1 for _, _, version in line["groups"])
    calls = [place for place in asked.read_text().splitlines() if int(place.split("/")[0]) >= EVALUATED]
    assert len(calls) == len(set(calls)) > 100, "no call is made twice"
