"""The log in a run's folder."""

import logging
import shutil
from pathlib import Path

import pytest

from embodyflow.orchestration.run.run_log import logged_to
from embodyflow.record.run_folder import RunFolder


def test_records_of_flow_runs_and_of_the_library_are_in_the_file(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for attempt in (1, 2):  # a resumed run appends
        with logged_to(folder):
            logging.getLogger("prefect.flow_runs").warning("attempt %d", attempt)
            logging.getLogger("embodyflow.rollouts").warning("a goal is quarantined")
        logging.getLogger("embodyflow").warning("after the run")
    lines = folder.log_path.read_text().splitlines()
    assert [line.split(maxsplit=2)[2] for line in lines] == [
        f"WARNING {message}" for n in (1, 2) for message in (f"attempt {n}", "a goal is quarantined")
    ]


def test_the_exception_that_ends_a_run_is_in_its_log_with_its_traceback(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with pytest.raises(ZeroDivisionError), logged_to(folder):
        _ = 1 / 0
    text = folder.log_path.read_text()
    assert "the run ends: ZeroDivisionError: division by zero" in text
    assert 'test_run_log.py", line' in text


def test_a_deleted_folder_is_not_made_again(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "mine")
    folder.path.mkdir()
    with logged_to(folder):
        shutil.rmtree(folder.path)
        logging.getLogger("prefect").warning("too late")
    assert not folder.path.exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_reported_once_and_ends_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder(tmp_path)
    folder.log_path.symlink_to("/dev/full")
    with logged_to(folder):
        for _ in range(3):
            logging.getLogger("prefect").warning("a line")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{tmp_path}/run.log: cannot be written: ")
