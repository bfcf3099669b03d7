"""The journal of calls: a later attempt reads what an earlier one got, and notices other requests."""

import shutil

import numpy as np
import pytest

from embodyflow.agents.chat.call_journal import CallJournal
from embodyflow.agents.tools.tool_runner import Answer
from embodyflow.generation.interface import Completion

COMPLETION = Completion((5, 6), (float(np.float32(-0.1)), -1e-8), "stop", 7)
ANSWER = Answer("mistake", "error: größer\n2", retries=1)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "0.0.calls.parts"
    journal = CallJournal(path)
    journal.add_completion(1, 0, 0, (1, 2), COMPLETION)
    journal.add_answer(1, 0, 0, "add", {"a": 1, "b": None}, ANSWER)
    return path


def test_calls_are_found_by_episode_draw_and_number(path):
    journal = CallJournal(path)

    assert journal.completion(1, 0, 0, (1, 2)) == COMPLETION
    assert journal.answer(1, 0, 0, "add", {"b": None, "a": 1}) == ANSWER
    assert journal.completion(1, 1, 0, (1, 2)) is None and journal.completion(2, 0, 0, (1, 2)) is None
    assert journal.answer(1, 0, 1, "add", {}) is None


def test_another_request_at_the_same_place_is_refused(path):
    journal = CallJournal(path)

    with pytest.raises(RuntimeError, match="episode 1, draw 0: turn 0 differs"):
        journal.completion(1, 0, 0, (1, 3))
    with pytest.raises(RuntimeError, match="episode 1, draw 0: tool 0 differs"):
        journal.answer(1, 0, 0, "add", {"a": 2, "b": None})


def test_the_part_of_a_line_that_a_killed_process_left_is_cut_off(path):
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:40])

    CallJournal(path).add_answer(1, 0, 1, "add", {}, ANSWER)

    assert CallJournal(path).answer(1, 0, 1, "add", {}) == ANSWER and path.read_bytes().startswith(whole)


def test_without_a_path_nothing_is_kept():
    journal = CallJournal(None)
    journal.add_completion(1, 0, 0, (1, 2), COMPLETION)

    assert journal.completion(1, 0, 0, (1, 2)) is None


def test_the_folder_of_a_deleted_run_stays_deleted(tmp_path):
    run = tmp_path / "run"
    path = run / "stages" / "1" / "rollout" / "0.calls.parts"
    run.mkdir()
    journal = CallJournal(path)
    journal.add_completion(1, 0, 0, (1, 2), COMPLETION)
    shutil.rmtree(run)

    with pytest.raises(FileNotFoundError):
        journal.add_completion(1, 0, 1, (1, 2), COMPLETION)
    assert not run.exists()
