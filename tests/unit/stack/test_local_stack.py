"""What a stack does about servers that do not answer as they should; with real ones: ``tests/integration``."""

import os
import sys
from urllib.error import HTTPError, URLError

import pytest

from embodyflow.cli import main as cli
from embodyflow.errors import ConfigError
from embodyflow.stack.prefect_api import PrefectApi
from embodyflow.stack.processes import STACK_VARIABLE, start_process
from embodyflow.stack.stack import Stack
from embodyflow.stack.stack_folder import StackFolder


class Api(PrefectApi):
    """A server that is healthy and refuses whatever it is asked."""

    def is_healthy(self) -> bool:
        return True

    def request(self, *_: object) -> None:
        raise HTTPError(self.url, 503, "Service Unavailable", None, None)  # type: ignore[arg-type]


def test_a_server_that_refuses_is_told_of_and_stopped_all_the_same(
    folder: StackFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    stack = Stack(folder, "up")
    stack._api = Api("http://unused/api")
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    server = start_process(command, log=folder.log("server"), env={}, cwd=folder.root)
    stack._processes["prefect-server"] = server
    stack.stop()
    assert server.poll() is not None
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "warning: could not report the end of the runs to the Prefect server: HTTP Error 503: Service Unavailable"
    )


@pytest.mark.parametrize("address", ["no-such-host.invalid:6379", "127.0.0.1:port", "127.0.0.1:99999", "127.0.0.1:9"])
def test_a_ray_address_where_nothing_answers_is_refused(
    folder: StackFolder, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConfigError, match=f"^RAY_ADDRESS={address}: does not answer"), Stack(folder, "up"):
        pass


def test_a_prefect_toml_of_the_users_is_refused_before_anything_is_started(
    folder: StackFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder.root / "prefect.toml").write_text("[logging]\nlevel = 'DEBUG'\n")
    monkeypatch.setattr(Stack, "_plan", lambda _: pytest.fail("it starts"))
    with pytest.raises(ConfigError, match=r"prefect\.toml: is in the way"), Stack(folder, "up"):
        pass


def test_of_two_stacks_that_start_at_once_one_is_refused_and_touches_nothing(
    folder: StackFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")  # where it came to start, it would be refused for another reason
    left = {**os.environ, STACK_VARIABLE: str(folder.root)}
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    part = start_process(command, log=folder.log("part"), env=left, cwd=folder.root)
    try:
        with (
            folder.locked(),
            pytest.raises(ConfigError, match=rf"a stack is up \(process {os.getpid()}\); `embodyflow down` stops"),
            Stack(folder, "up"),
        ):
            pass
        assert part.poll() is None
    finally:
        part.kill()
    with folder.locked():  # free again
        pass


@pytest.mark.parametrize("error", [URLError("refused"), ConnectionResetError("reset by peer")])
def test_a_server_that_went_away_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def away() -> int:
        raise error

    monkeypatch.setattr("embodyflow.stack.signals.exit_on_signals", lambda: None)
    monkeypatch.setattr("embodyflow.cli.up.status", away)
    assert cli.main(["status"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: the Prefect server went away: ")
