"""Parts die while groups are streamed whose weights change within their rows: the run repeats its own record."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from faulty_runs import FaultyRuns, fault
from small_runs import ROOT

from embodyflow.record.ledger import Ledger

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800)]

FAULTS = {
    "rollout": [fault("train_actor", "rollout/0", iteration=2), fault("train_actor", "rollout/1", 3, delay=0.05)],
    "trainer": [fault("train_actor", "trainer/0", iteration=2), fault("commit", "trainer/0", iteration=4)],
    "driver": [fault("train_actor", "driver", iteration=2), fault("commit", "driver", iteration=4)],
}
WORDS = ("iterations=5",)
DEATHS = ("rollout/0", "trainer/0", "driver")


@pytest.fixture(scope="module", params=["streamed", "streamed_agent", "streamed_episodes"])
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, prefect_api: str) -> FaultyRuns:
    faulty = FaultyRuns(tmp_path_factory.mktemp(f"{request.param}-chaos"), prefect_api, request.param)
    faulty.runs = faulty.runs.served_by(prefect_api, EMBODYFLOW_STEP_SECONDS="0.15")
    return faulty


@pytest.mark.parametrize("part", FAULTS)
def test_a_run_repeats_its_own_record_after_deaths(runs: FaultyRuns, part: str) -> None:
    runs.run(part, *FAULTS[part], words=WORDS)
    assert runs.num_faults(part) == len(FAULTS[part])
    runs.outcome(part)  # no update is repeated or skipped
    assert_consistent(runs.runs.root / part)
    command = [sys.executable, "-m", "embodyflow.cli.main", "reproduce", part, "--run-root", str(runs.runs.root)]
    plan = runs.beside_plan(part, ".none.json")
    plan.write_text("[]")
    env = runs.runs.env | {"EMBODYFLOW_FAULTS": str(plan)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("equal: ")


def assert_consistent(folder: Path) -> None:
    """Check that the record names each iteration once, and no version that is too old or too new."""
    lines = [entry for entry in Ledger(folder / "ledger.jsonl").entries if entry.kind == "groups"]
    assert [entry.iteration for entry in lines] == [1, 2, 3, 4, 5]
    for entry in lines:
        swaps = entry.facts.get("swaps", {}).values()
        used = {version for _, _, version in (*entry.facts["groups"], *(swap for each in swaps for swap in each))}
        assert used <= {*range(entry.iteration - 3, entry.iteration)}, json.dumps(entry.facts)
    assert any("swaps" in entry.facts for entry in lines), "no row has met newer weights"


def test_by_index_deaths_change_nothing(tmp_path: Path, prefect_api: str) -> None:
    runs = FaultyRuns(tmp_path, prefect_api, "streamed_episodes")
    words = ("rollout.order=by_index", "rollout.interrupt.when=null", "iterations=4")
    runs.run("undisturbed", words=words)
    faults = [fault("train_actor", part, iteration) for iteration, part in enumerate(DEATHS, start=2)]
    runs.assert_recovers(runs.outcome("undisturbed"), "disturbed", *faults, words=words)
