"""The files by which a stack is found."""

import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from waiting import eventually

from embodyflow.cli import up
from embodyflow.errors import ConfigError
from embodyflow.stack.stack import clear_leftovers, stop_stack
from embodyflow.stack.stack_folder import StackFolder, StackState, live_stack

ME = psutil.Process()
STATE = StackState(
    ME.pid, ME.create_time(), True, "http://127.0.0.1:4200/api", "127.0.0.1:6379", "/tmp/ray", {"ray": 1}
)


def test_a_stack_is_live_as_long_as_its_launcher(tmp_path: Path) -> None:
    folder = StackFolder(tmp_path)
    assert live_stack(folder) is None
    folder.write_state(STATE)
    assert live_stack(folder) == STATE
    folder.write_state(replace(STATE, created=STATE.created - 60.0))
    assert live_stack(folder) is None
    folder.remove_state()
    assert folder.read_state() is None


def test_prefect_toml_names_the_server_and_is_removed(tmp_path: Path) -> None:
    folder = StackFolder(tmp_path)
    folder.write_prefect_toml("http://127.0.0.1:4201/api", 'me:"pass\\word"')
    assert tomllib.loads((tmp_path / "prefect.toml").read_text()) == {
        "api": {"url": "http://127.0.0.1:4201/api", "auth_string": 'me:"pass\\word"'}
    }
    assert (tmp_path / "prefect.toml").stat().st_mode & 0o777 == 0o600
    folder.remove_prefect_toml()
    assert not (tmp_path / "prefect.toml").exists()


def test_a_prefect_toml_of_the_users_is_neither_written_nor_removed(tmp_path: Path) -> None:
    (tmp_path / "prefect.toml").write_text("[logging]\nlevel = 'DEBUG'\n")
    folder = StackFolder(tmp_path)
    with pytest.raises(ConfigError, match=r"prefect\.toml"):
        folder.write_prefect_toml("http://127.0.0.1:4201/api", "me:password")
    folder.remove_prefect_toml()
    assert (tmp_path / "prefect.toml").read_text() == "[logging]\nlevel = 'DEBUG'\n"


def test_a_folder_without_deployments_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"deployments/prefect\.yaml"):
        StackFolder.here()


def test_the_ray_token_is_for_its_owner_alone(tmp_path: Path) -> None:
    from embodyflow.stack.services import ray_environment

    folder = StackFolder(tmp_path)
    environment = ray_environment(folder)
    assert Path(environment["RAY_AUTH_TOKEN_PATH"]) == folder.ray_token
    assert os.stat(folder.ray_token).st_mode & 0o077 == 0
    first = folder.ray_token.read_text()
    ray_environment(folder)
    assert len(first) == 64
    assert folder.ray_token.read_text() != first


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("is_ours", [True, False])
def test_the_watcher_of_a_killed_stack_removes_its_prefect_toml(tmp_path: Path, is_ours: bool) -> None:
    folder = StackFolder(tmp_path)
    if is_ours:
        folder.write_prefect_toml("http://127.0.0.1:1/api", "me:password")
    else:
        folder.prefect_toml.path.write_text("[api]\n")
    launcher = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from embodyflow.orchestration.watchers.orphans import start_watcher\n"
        "from embodyflow.stack.processes import STACK_VARIABLE\n"
        "from embodyflow.stack.stack_folder import StackFolder\n"
        "folder = StackFolder(Path(sys.argv[1]))\n"
        "watcher = start_watcher(STACK_VARIABLE, os.environ | {STACK_VARIABLE: sys.argv[1]}, folder.prefect_toml)\n"
        "print(watcher.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", launcher, str(tmp_path)]
    killed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    watcher = int(killed.stdout)
    assert eventually(lambda: has_ended(watcher), 30.0)
    assert folder.prefect_toml.path.exists() is not is_ours


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.parametrize("is_old", [False, True])
def test_no_other_user_can_enter_the_folder_of_a_stack(tmp_path: Path, is_old: bool, open_umask: None) -> None:
    """It has the Prefect database, results that Prefect unpickles, and the address that gets the password."""
    from embodyflow.stack.services import create_auth_string, ray_environment

    for number, make in enumerate((StackFolder.prepare, create_auth_string, ray_environment)):
        folder = StackFolder(tmp_path / str(number))
        folder.root.mkdir()
        if is_old:
            folder.private.mkdir()
        make(folder)
        assert folder.private.stat().st_mode & 0o777 == 0o700
    folder.private.chmod(0o777)
    folder.write_state(STATE)
    assert folder.private.stat().st_mode & 0o777 == 0o700


def test_a_stack_of_another_user_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(path: Path, *_: object) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", forbidden)
    with pytest.raises(ConfigError, match=r"\.embodyflow: is another user's, and only they can use its stack$"):
        live_stack(StackFolder(tmp_path))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}', '{"pid": 1, "colour": "of a newer version"}'])
def test_a_damaged_state_is_one_line_and_down_removes_it(content: str, tmp_path: Path) -> None:
    folder = StackFolder(tmp_path)
    folder.prepare()
    (folder.private / "stack.json").write_text(content)
    with pytest.raises(ConfigError, match=r"stack\.json: is damaged, or another version .*; `embodyflow down` ends"):
        live_stack(folder)
    assert folder.launcher() is None
    with folder.locked():
        assert folder.launcher() == ME  # whoever holds the lock
    assert stop_stack(folder) and not stop_stack(folder)
    assert live_stack(folder) is None


@pytest.mark.parametrize("content", ["", "deployments: 3", "deployments: [{name: a}]", "a: [", "deployments: [x]"])
def test_a_wrong_file_of_deployments_is_one_line(content: str, tmp_path: Path) -> None:
    folder = StackFolder(tmp_path)
    folder.prefect_yaml.parent.mkdir()
    folder.prefect_yaml.write_text(content)
    with pytest.raises(ConfigError, match=r"^.*/deployments/prefect\.yaml: must list deployments, each with .*\Z"):
        folder.deployment("grpo", "embodied")


def test_a_prefect_toml_in_another_encoding_is_the_users(tmp_path: Path) -> None:
    (tmp_path / "prefect.toml").write_bytes("# für uns\n".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"prefect\.toml: is in the way"):
        StackFolder(tmp_path).check_prefect_toml()
    StackFolder(tmp_path).remove_prefect_toml()
    assert (tmp_path / "prefect.toml").exists()


def test_a_stack_that_starts_replaces_a_damaged_state(tmp_path: Path) -> None:
    folder = StackFolder(tmp_path)
    folder.prepare()
    (folder.private / "stack.json").write_text('{"colour": "of another version"}')
    assert up._ready_stack(folder, ME.pid) is None
    clear_leftovers(folder)
    for state in (None, replace(STATE, ready=False), STATE):
        if state is not None:
            folder.write_state(state)
        assert up._ready_stack(folder, ME.pid) == (STATE if state == STATE else None)
    assert up._ready_stack(folder, 1) is None
