"""Real runs that roll back, end or ask because of what a detector finds."""

import json
import signal
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, open_browser
from small_runs import SMALL_CONTROL, Runs, training_records
from support_path import SUPPORT_PATH
from waiting import eventually, finish

from embodyflow.cli.main import main
from embodyflow.record.ledger import Ledger
from embodyflow.record.run_folder import RunFolder

pytestmark = pytest.mark.integration

DETECTOR = (
    "health.own.fast.function=health_detectors:too_fast",
    "health.own.fast.settings={at:2,most:2e-4}",
    "health.own.fast.changes={trainer.learning_rate:0.5}",
    "health.roll_back.iterations=1",
)
ROLLS_BACK = ("health.own.fast.action=roll_back", *DETECTOR)
PAUSES = ("health.own.fast.action=pause", *DETECTOR)


@pytest.fixture
def runs(tmp_path: Path, prefect_api: str, ray_env: dict[str, str]) -> Runs:
    return Runs(tmp_path).served_by(prefect_api, PYTHONPATH=SUPPORT_PATH, **ray_env)


def start(runs: Runs, run_id: str, *words: str) -> subprocess.Popen[str]:
    names = (f"run_root={runs.root}", f"run_id={run_id}", "iterations=3", "tracking.tensorboard=false")
    return runs.start(*SMALL_CONTROL, *names, *words, flow="ppo")


def rates(runs: Runs, run_id: str) -> list[float]:
    return [line["train/learning_rate"] for line in training_records(runs.metrics(run_id))]


def ledger_of(runs: Runs, run_id: str) -> Ledger:
    return Ledger(RunFolder(runs.root / run_id).ledger_path)


def kinds(runs: Runs, run_id: str) -> list[tuple[str, int]]:
    path = runs.root / run_id / "ledger.jsonl"
    return [(each.kind, each.iteration) for each in Ledger(path).entries] if path.exists() else []


@pytest.mark.slow
def test_a_run_rolls_back_and_goes_on_with_half_the_rate(runs: Runs) -> None:
    process = start(runs, "mine", *ROLLS_BACK)
    output = finish(process)
    assert process.returncode == 0, output[-4000:]
    assert "health.fast: in iteration 2 the rate 0.0003 is too high (roll_back)" in output
    assert "roll-back 1: returns to iteration 1 with trainer.learning_rate=0.00015" in output
    assert rates(runs, "mine") == [3e-4, 1.5e-4, 1.5e-4]
    [line] = ledger_of(runs, "mine").roll_backs()
    assert (line.iteration, line.facts["to"]) == (2, 1)


@pytest.mark.slow
def test_a_roll_back_is_repeated_bit_identically_and_survives_kills(runs: Runs) -> None:
    for run_id in ("straight", "again"):
        process = start(runs, run_id, *ROLLS_BACK)
        output = finish(process)
        assert process.returncode == 0, output[-4000:]
    runs.assert_same_training("again", "straight")
    process = start(runs, "killed", *ROLLS_BACK)
    assert eventually(lambda: ("roll_back", 2) in kinds(runs, "killed"), 400)
    process.send_signal(signal.SIGKILL)  # while the workers of the changed configuration start
    finish(process)
    runs.resume("killed", f"run_root={runs.root}", flow="ppo")
    runs.assert_same_training("killed", "straight")
    assert ledger_of(runs, "killed").digest() == ledger_of(runs, "straight").digest()


def paused_flow_run(api: str, run_id: str) -> str | None:
    wanted = {"flow_runs": {"name": {"any_": [run_id]}, "state": {"type": {"any_": ["PAUSED"]}}}}
    found = post(f"{api}/flow_runs/filter", wanted)
    return str(found[0]["id"]) if found else None


def post(url: str, body: dict[str, Any]) -> Any:
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
        return json.load(answer)


@pytest.mark.slow
def test_a_paused_run_asks_again_after_its_process_was_killed(runs: Runs, prefect_api: str) -> None:
    process = start(runs, "asks", *PAUSES)
    try:
        assert eventually(lambda: paused_flow_run(prefect_api, "asks"), 400)
        assert ("commit", 2) in kinds(runs, "asks"), "the commit is on disk while the run waits"
        process.send_signal(signal.SIGKILL)
        finish(process)
        assert eventually(lambda: paused_flow_run(prefect_api, "asks") is None, 60), "its watcher closes it"
        process = runs.start("resume=asks", f"run_root={runs.root}", flow="ppo")
        assert eventually(lambda: paused_flow_run(prefect_api, "asks"), 400)
        flow_run = paused_flow_run(prefect_api, "asks")
        form = post(f"{prefect_api}/flow_runs/{flow_run}/resume", {"run_input": {"answer": "roll_back"}})
        assert form["status"] == "ACCEPT"
    finally:
        output = finish(process)
    assert process.returncode == 0, output[-4000:]
    assert rates(runs, "asks") == [3e-4, 1.5e-4, 1.5e-4]
    assert ("answer", 2) in kinds(runs, "asks")


@pytest.mark.slow
def test_a_person_answers_in_the_ui(runs: Runs, prefect_api: str, tmp_path: Path) -> None:
    with open_browser(prefect_api, tmp_path / "screenshots") as browser:
        process = start(runs, "clicked", *PAUSES)
        try:
            assert eventually(lambda: paused_flow_run(prefect_api, "clicked"), 400)
            click_through(browser, f"/runs/flow-run/{paused_flow_run(prefect_api, 'clicked')}", "roll_back")
        except BaseException:
            process.terminate()  # it would wait for an answer
            raise
        finally:
            output = finish(process)
    assert process.returncode == 0, output[-4000:]
    assert rates(runs, "clicked") == [3e-4, 1.5e-4, 1.5e-4]
    assert ("answer", 2) in kinds(runs, "clicked")


def click_through(browser: Browser, page_of_run: str, answer: str) -> None:
    """Resume a paused flow run as a person does: read the finding, choose an answer, submit."""
    page = browser.open(page_of_run)
    page.get_by_role("button", name="Resume").first.click()
    form = page.locator(".p-modal")
    form.get_by_text("in iteration 2 the rate 0.0003 is too high").wait_for()
    browser.photograph(page, "question")
    form.locator(".p-select-button__control").press("ArrowDown")  # opens the list
    page.locator(".p-select-option", has_text=answer).click()
    browser.photograph(page, "answer")
    form.get_by_role("button", name="Submit").click()


@pytest.mark.slow
def test_a_paused_run_is_answered_from_the_command_line(runs: Runs, prefect_api: str) -> None:
    process = start(runs, "cli", *PAUSES)
    question = runs.root / "cli" / "question.json"
    try:
        assert eventually(question.exists, 400)
        time.sleep(3)  # the flow run is paused on the server by then, or not yet: both must work
        assert main(["answer", str(runs.root / "cli"), "cancel"]) == 0
    finally:
        output = finish(process)
    assert process.returncode == 1
    assert "health.fast: in iteration 2 the rate 0.0003 is too high; health.fast.action=pause ends the run" in output
    assert not question.exists()
