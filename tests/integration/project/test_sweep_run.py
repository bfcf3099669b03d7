"""A sweep on real Prefect and Ray that is stopped in the middle and continued; a value of it fails at run time."""

import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from local_stack import post
from small_runs import SMALL_CONTROL, Runs
from waiting import eventually, finish

from embodyflow.record.run_folder import RunFolder

pytestmark = pytest.mark.integration

# A rate of 1e30 makes the weights inf in the first iteration, which ends a run.
WORDS = [
    *(*SMALL_CONTROL, "iterations=20", "rollout.num_workers=1", "trainer.learning_rate=1e-3,1e30", "seed=range(0,2)"),
    *("sweep_id=rates", "tracking.tensorboard=false"),
]


class Swept(NamedTuple):
    """The sweep after both commands, and what the first one left.

    Attributes:
        folder: Folder of the runs.
        api: Address of the Prefect server.
        stopped: States of the runs after the first command.
        first: Output of the first command.
        second: Output of the second one.
        codes: Their exit codes.
        ledgers: Ledgers of the first two runs after the first command.
    """

    folder: Path
    api: str
    stopped: Mapping[str, str]
    first: str
    second: str
    codes: tuple[int, int]
    ledgers: tuple[str, str]

    def records(self, run_id: str) -> list[dict[str, Any]]:
        return RunFolder(self.folder / run_id).metrics.read()

    def ledger(self, run_id: str) -> str:
        return RunFolder(self.folder / run_id).ledger_path.read_text()


def states(folder: Path) -> dict[str, str]:
    runs = json.loads((folder / "rates" / "sweep.json").read_text())["runs"]
    return {run_id: run["state"] for run_id, run in runs.items()}


@pytest.fixture(scope="module")
def swept(prefect_api: str, tmp_path_factory: pytest.TempPathFactory) -> Swept:
    """The command, stopped by SIGTERM while its second run is at work, and the same command again."""
    runs = Runs(tmp_path_factory.mktemp("sweep"), prefect_api)
    words = [*WORDS, f"run_root={runs.root}"]
    process = runs.start(*words, flow="sweep", process_group=0)
    second = RunFolder(runs.root / "rates-2")
    committed = eventually(lambda: second.checkpoints.committed()[-1:] >= [1] or process.poll() is not None, 200.0)
    process.send_signal(signal.SIGTERM)
    first = finish(process, 60.0)
    assert committed and second.path.exists(), first[-4000:]
    runs.assert_nothing_runs(10.0)
    stopped, ledgers = (
        states(runs.root),
        tuple(RunFolder(runs.root / f"rates-{n}").ledger_path.read_text() for n in (1, 2)),
    )
    again = runs.start(*words, "if_exists=resume", flow="sweep")
    output = finish(again)
    runs.assert_nothing_runs(10.0)
    return Swept(runs.root, prefect_api, stopped, first, output, (process.returncode, again.returncode), ledgers)


@pytest.mark.slow
def test_a_signal_ends_all_processes_and_names_the_command_that_continues(swept: Swept) -> None:
    assert swept.codes[0] == 130, swept.first[-4000:]
    assert "stopped; continue with the same command, sweep_id=rates and if_exists=resume" in swept.first
    assert swept.stopped == {"rates-1": "finished", "rates-2": "stopped", "rates-3": "waiting", "rates-4": "waiting"}


@pytest.mark.slow
def test_the_same_command_repeats_no_finished_run_and_resumes_the_interrupted_one(swept: Swept) -> None:
    assert states(swept.folder) == {
        "rates-1": "finished",
        "rates-2": "finished",
        "rates-3": "failed",
        "rates-4": "failed",
    }
    assert swept.ledger("rates-1") == swept.ledgers[0]
    assert swept.ledger("rates-2").startswith(swept.ledgers[1])
    assert "resumed after iteration" in (swept.folder / "rates" / "logs" / "rates-2.log").read_text()


@pytest.mark.slow
def test_failed_runs_are_in_the_leaderboard_without_a_value(swept: Swept) -> None:
    board = json.loads((swept.folder / "rates" / "leaderboard.json").read_text())
    assert board["metric"] == "rollout/reward"
    best, worst = board["rows"]
    assert (best["rank"], best["settings"], best["seeds"]) == (1, {"trainer.learning_rate": "0.001"}, 2)
    finals = [swept.records(run_id)[-1]["rollout/reward"] for run_id in ("rates-1", "rates-2")]
    assert best["after"] == pytest.approx(sum(finals) / 2)
    assert best["interval"] == {"low": min(finals), "high": max(finals), "kind": "range"}
    assert (worst["rank"], worst["before"], worst["after"]) == (None, None, None)
    assert worst["states"] == {"failed": 2} and board["failures"].keys() == {"rates-3", "rates-4"}


@pytest.mark.slow
def test_the_output_ends_with_the_leaderboard_in_80_columns(swept: Swept) -> None:
    assert swept.codes[1] == 1, swept.second[-4000:]
    _, error, table = swept.second.rpartition(
        "2 of 4 runs failed: rates-3, rates-4; the same command with if_exists=resume"
    )
    assert error and "compare: embodyflow compare rates-1 rates-2" in table
    lines = table.partition("compare: ")[0].splitlines()[1:]
    assert "rank" in lines[1] and max(map(len, lines)) <= 80, lines


def filtered(swept: Swept, where: str, parent: str) -> dict[str, str]:
    found = post(f"{swept.api}/flow_runs/filter", {"flow_runs": {where: {"any_": [parent]}}})
    return {each["name"]: each["state_type"] for each in found}


@pytest.mark.slow
def test_the_flow_run_of_the_sweep_leads_to_those_of_its_runs_and_to_the_leaderboard(swept: Swept) -> None:
    asked: dict[str, Any] = {"flow_runs": {"name": {"any_": ["rates"]}}, "sort": "START_TIME_ASC"}
    first, second = post(f"{swept.api}/flow_runs/filter", asked)
    assert (first["name"], first["state_type"]) == ("rates", "CRASHED")
    assert (second["name"], second["state_type"]) == ("rates", "FAILED")
    assert filtered(swept, "parent_flow_run_id", first["id"]) == {"rates-1": "COMPLETED", "rates-2": "CRASHED"}
    ended = {"rates-2": "COMPLETED", "rates-3": "FAILED", "rates-4": "FAILED"}
    assert filtered(swept, "parent_flow_run_id", second["id"]) == ended
    shown = post(f"{swept.api}/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [second["id"]]}}})
    [table] = [each for each in shown if each["key"] == "rates-leaderboard"]
    ranks = [(row["rank"], row["state"]) for row in json.loads(table["data"])]
    assert ranks == [(1, "2 finished"), (None, "2 failed")]
