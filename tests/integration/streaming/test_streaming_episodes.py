"""Complete runs that stream the episodes of a robot policy, with real flows and Ray."""

import json
import subprocess
import sys

import pytest
from small_runs import ROOT, Runs

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1200)]

AHEAD = ("rollout.max_staleness=1", "algorithm.old_log_probs=proximal", "iterations=3")
STREAMING = (*AHEAD, "rollout.mode=streaming")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, prefect_api: str) -> Runs:
    return Runs(tmp_path_factory.mktemp("streaming-episodes"), prefect_api)


def test_by_index_the_weights_are_those_of_rollouts_ahead(runs: Runs) -> None:
    runs.run("ahead", *AHEAD)
    runs.run("streamed", *STREAMING, "rollout.env_processes=2")
    assert runs.summary("streamed")["weights_digest"] == runs.summary("ahead")["weights_digest"]


def test_first_ready_a_run_is_reproduced_from_its_record(runs: Runs) -> None:
    runs.run("first", *STREAMING, "rollout.order=first_ready", "rollout.num_workers=2")
    lines = [json.loads(line.partition("\t")[0]) for line in (runs.root / "first" / "ledger.jsonl").open()]
    selections = [line for line in lines if line["kind"] == "groups"]
    assert [line["iteration"] for line in selections] == [1, 2, 3]
    for line in selections:
        assert all(0 <= line["iteration"] - 1 - version <= 1 for _, _, version in line["groups"])
    command = [sys.executable, "-m", "embodyflow.cli.main", "reproduce", "first", "--run-root", str(runs.root)]
    done = subprocess.run(command, cwd=ROOT, env=runs.env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("equal: ")
