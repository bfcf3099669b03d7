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
    *(*SMALL_CONTROL, "iterations=12", "rollout.num_workers=1", "trainer.learning_rate=1e-3,1e30", "seed=range(0,2)"),
    *("sweep_id=lr", "tracking.tensorboard=false"),
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

    def ledger(self, run_id: str) -> str:
        return RunFolder(self.folder / run_id).ledger_path.read_text()


def states(folder: Path) -> dict[str, str]:
    runs = json.loads((folder / "lr" / "sweep.json").read_text())["runs"]
    return {run_id: run["state"] for run_id, run in runs.items()}


@pytest.fixture(scope="module")
def swept(prefect_api: str, tmp_path_factory: pytest.TempPathFactory) -> Swept:
    """The command, stopped by SIGTERM while its second run is at work, and the same command again."""
    runs = Runs(tmp_path_factory.mktemp("sweep"), prefect_api)
    words = [*WORDS, f"run_root={runs.root}"]
    process = runs.start(*words, flow="sweep", process_group=0)
    second = RunFolder(runs.root / "lr-2")
    committed = eventually(lambda: second.checkpoints.committed()[-1:] >= [2] or process.poll() is not None, 200.0)
    process.send_signal(signal.SIGTERM)
    first = finish(process, 60.0)
    assert committed and second.path.exists(), first[-4000:]
    runs.assert_nothing_runs(10.0)
    stopped, ledgers = (
        states(runs.root),
        tuple(RunFolder(runs.root / f"lr-{n}").ledger_path.read_text() for n in (1, 2)),
    )
    again = runs.start(*words, "if_exists=resume", flow="sweep")
    output = finish(again)
    runs.assert_nothing_runs(10.0)
    return Swept(runs.root, prefect_api, stopped, first, output, (process.returncode, again.returncode), ledgers)


def test_a_signal_ends_all_processes_and_names_the_command_that_continues(swept: Swept) -> None:
    assert swept.codes[0] == 130, swept.first[-4000:]
    assert "stopped; continue with the same command, sweep_id=lr and if_exists=resume" in swept.first
    assert swept.stopped == {"lr-1": "finished", "lr-2": "stopped", "lr-3": "waiting", "lr-4": "waiting"}


def test_the_same_command_repeats_no_finished_run_and_resumes_the_interrupted_one(swept: Swept) -> None:
    assert states(swept.folder) == {"lr-1": "finished", "lr-2": "finished", "lr-3": "failed", "lr-4": "failed"}
    assert swept.ledger("lr-1") == swept.ledgers[0]
    assert swept.ledger("lr-2").startswith(swept.ledgers[1])
    assert "resumed after iteration" in (swept.folder / "lr" / "logs" / "lr-2.log").read_text()


def test_failed_runs_are_in_the_leaderboard_without_a_value(swept: Swept) -> None:
    board = json.loads((swept.folder / "lr" / "leaderboard.json").read_text())
    assert board["metric"] == "rollout/reward"
    best, worst = board["rows"]
    assert (best["rank"], best["settings"], best["seeds"]) == (1, {"trainer.learning_rate": "0.001"}, 2)
    finals = [json.loads(swept_summary(swept, run_id))["return_after"] for run_id in ("lr-1", "lr-2")]
    assert best["interval"]["kind"] == "range" and len(finals) == 2
    assert (worst["rank"], worst["before"], worst["after"]) == (None, None, None)
    assert worst["states"] == {"failed": 2} and board["failures"].keys() == {"lr-3", "lr-4"}


def swept_summary(swept: Swept, run_id: str) -> str:
    return (swept.folder / run_id / "summary.json").read_text()


def test_the_output_ends_with_the_leaderboard_in_80_columns(swept: Swept) -> None:
    assert swept.codes[1] == 1, swept.second[-4000:]
    _, error, table = swept.second.partition("2 of 4 runs failed: lr-3, lr-4; the same command with if_exists=resume")
    assert error and "compare: embodyflow compare lr-1 lr-2" in table
    lines = table.partition("compare: ")[0].splitlines()[1:]
    assert "rank" in lines[1] and max(map(len, lines)) <= 80, lines


def filtered(swept: Swept, where: str, parent: str) -> dict[str, str]:
    found = post(f"{swept.api}/flow_runs/filter", {"flow_runs": {where: {"any_": [parent]}}})
    return {each["name"]: each["state_type"] for each in found}


def test_the_flow_run_of_the_sweep_leads_to_those_of_its_runs_and_to_the_leaderboard(swept: Swept) -> None:
    asked: dict[str, Any] = {"flows": {"name": {"any_": ["sweep"]}}, "sort": "START_TIME_ASC"}
    first, second = post(f"{swept.api}/flow_runs/filter", asked)
    assert (first["name"], first["state_type"]) == ("lr", "CRASHED")
    assert (second["name"], second["state_type"]) == ("lr", "FAILED")
    assert filtered(swept, "parent_flow_run_id", first["id"]) == {"lr-1": "COMPLETED", "lr-2": "CRASHED"}
    ended = {"lr-2": "COMPLETED", "lr-3": "FAILED", "lr-4": "FAILED"}
    assert filtered(swept, "parent_flow_run_id", second["id"]) == ended
    shown = post(f"{swept.api}/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [second["id"]]}}})
    [table] = [each for each in shown if each["key"] == "lr-leaderboard"]
    ranks = [(row["rank"], row["state"]) for row in json.loads(table["data"])]
    assert ranks == [(1, "2 finished"), (None, "2 failed")]
