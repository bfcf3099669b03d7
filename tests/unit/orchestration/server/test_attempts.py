"""A deployment's flow run is executed by one process at a time."""

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.states import Cancelled, Cancelling, Completed, Failed, Running

from embodyflow.errors import ConfigError
from embodyflow.orchestration.server import attempts
from embodyflow.process.files.file_lock import try_lock


@pytest.fixture(autouse=True)
def _of_a_deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = SimpleNamespace(deployment=SimpleNamespace(id="d"), flow_run=SimpleNamespace(id="f"))
    monkeypatch.setattr(attempts, "runtime", runtime)
    monkeypatch.setattr(attempts, "get_run_logger", logging.getLogger)
    monkeypatch.setattr(attempts, "_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(attempts, "_held", {})


class Client:
    """Stands in for the client of a server that knows the flow run's state."""

    def __init__(self, state: Any) -> None:
        self._state = state

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    async def read_flow_run(self, flow_run_id: str) -> SimpleNamespace:
        assert flow_run_id == "f"
        return SimpleNamespace(state=self._state)


def wait_behind_another(tmp_path: Path, state: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the answer to a process that waits until another one, which leaves the flow run in a state, is gone."""
    path = tmp_path / attempts.FOLDER / "f.lock"
    path.parent.mkdir()
    lock = try_lock(path)
    assert lock is not None
    monkeypatch.setattr(attempts, "get_client", lambda: Client(state))

    async def wait() -> Any:
        waiting = asyncio.create_task(attempts.only_attempt(lambda: str(tmp_path)))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        lock.close()
        return await waiting

    return asyncio.run(wait())


@pytest.mark.parametrize("state", [Completed(), Failed(), Cancelled()])
def test_nothing_is_left_to_do_once_another_process_has_ended_the_flow_run(
    tmp_path: Path, state: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wait_behind_another(tmp_path, state, monkeypatch) == state


def test_a_flow_run_that_is_being_cancelled_does_not_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert wait_behind_another(tmp_path, Cancelling(), monkeypatch).is_cancelled()


def test_a_flow_run_whose_process_was_killed_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert wait_behind_another(tmp_path, Running(), monkeypatch) is None
    assert try_lock(tmp_path / attempts.FOLDER / "f.lock") is None, "a third process waits in turn"


def test_a_retry_in_the_same_process_does_not_wait_for_itself(tmp_path: Path) -> None:
    for _ in range(2):
        assert asyncio.run(attempts.only_attempt(lambda: str(tmp_path))) is None


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"run_root=.*file: .* cannot be written: Not a directory"):
        asyncio.run(attempts.only_attempt(lambda: str(tmp_path / "file")))
