"""The image by its Dockerfile, without Docker: its steps in a chroot, and the demonstration in it as its user.

The base is a stand-in from Debian's packages (``debian_base``). Some 8 GB of disk are needed meanwhile, and a network.
"""

import os
import re
import shutil
import stat
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from build_context import BuildContext
from chroot import Bind, Container, mounts_below, package_access, processes_below, why_no_container
from debian_base import make_debian_base, why_no_base
from deployment_files import DEPLOYMENTS, ROOT
from image_build import ImageBuild, Stage, size

REASON = why_no_container() or why_no_base()

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(bool(REASON), reason=REASON),
]

USER = 1000
RESULT = re.compile(r"success_rate before=(\S+) after=(\S+) goals=64 seed=0 ")
NAMES = (Bind(Path("/etc/hosts"), "/etc/hosts"),)


def private_copy(folder: Path) -> BuildContext:
    """Return the build context as a checkout has it that only its user may read."""
    BuildContext(ROOT).copy(".", folder)
    shutil.copy(ROOT / ".dockerignore", folder)
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode & 0o700)
    return BuildContext(folder)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("image")
    cache = {"/root/.cache": Path.home() / ".cache"}
    context = private_copy(folder / "context")
    build = ImageBuild(context, folder, make_debian_base, caches=cache, access=package_access())
    try:
        stage = build.run((DEPLOYMENTS / "images" / "Dockerfile").read_text())
        for step, seconds in build.seconds:
            print(f"{seconds:8.1f} s  {step}")
        print(f"{size(stage.root) / 1e9:8.2f} GB, of which {size(stage.root / 'app' / '.venv') / 1e9:.2f} GB are .venv")
        yield stage
    finally:
        assert not mounts_below(folder) and not processes_below(folder), "nothing may be removed through a mount"
        shutil.rmtree(folder)


@pytest.fixture
def container(image: Stage) -> Container:
    """Return a container of the image, with /dev/shm as large as in Compose and a network of its own."""
    return replace(image.container(binds=NAMES, shm="4g"), network=False)


def test_the_code_belongs_to_root_and_everyone_may_read_it(image: Stage) -> None:
    app = image.root / "app"
    paths = [app, *(path for path in app.rglob("*") if not path.is_symlink())]
    found = {path: path.stat() for path in paths}
    assert {path for path, status in found.items() if status.st_uid != 0} == {app, app / "runs"}
    assert not [path for path, status in found.items() if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)]
    assert not [path for path, status in found.items() if not status.st_mode & stat.S_IROTH]
    assert {app / "runs", app / "embodyflow" / "__pycache__"} <= found.keys()


def test_its_command_says_what_the_machine_offers(image: Stage, container: Container, tmp_path: Path) -> None:
    log = tmp_path / "doctor.log"
    status = container.run(image.command, log)
    assert status == 0 and image.command == ["embodyflow", "doctor"], log.read_text()
    assert "3.11" in log.read_text()


def test_the_demonstration_runs_as_a_user_without_rights(image: Stage, container: Container, tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    with SeenProcesses(image.root) as seen:
        status = container.run(["make", "run"], log)
    text = log.read_text()
    assert status == 0, text[-6000:]
    assert [match.groups() for match in RESULT.finditer(text)] == [("0.609", "1.000")], text[-6000:]
    assert "pip install" not in text and "apt-get" not in text, "all that it needs is installed"
    assert seen.users == {str(USER)} and seen.capabilities == {"0" * 16}
    assert seen.namespaces == {os.readlink("/proc/self/ns/user")}, "no user namespace is used"
    assert list((image.root / "app" / "runs").glob("*/videos/*.gif")), "MuJoCo draws without a display"
    assert not processes_below(image.root) and not mounts_below(image.root)


def test_what_a_command_leaves_is_ended_and_its_status_says_so(image: Stage, tmp_path: Path) -> None:
    log = tmp_path / "commands.log"
    container = replace(image.container(), user="0:0")
    assert container.run(["sh", "-c", "exit 3"], log) == 3
    assert container.run(["sh", "-c", "mount -t tmpfs none /mnt && touch /mnt/a"], log) == 0
    assert not (image.root / "mnt" / "a").exists()
    assert container.run(["sh", "-c", "sleep 1000 & exit 0"], log) == 97
    assert "left running: sleep 1000" in log.read_text()
    assert not processes_below(image.root) and not mounts_below(image.root)


class SeenProcesses:
    """What the processes of a folder's user are during a block, seen ten times a second.

    Args:
        root: The folder.

    Attributes:
        users: Their user ids.
        capabilities: What they may at most gain, as in ``/proc/<id>/status``.
        namespaces: Their user namespaces.
    """

    def __init__(self, root: Path) -> None:
        self.users: set[str] = set()
        self.capabilities: set[str] = set()
        self.namespaces: set[str] = set()
        self._root, self._over = root, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "SeenProcesses":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.1):
            for number in processes_below(self._root):
                place = Path(f"/proc/{number}")
                try:
                    namespace = os.readlink(place / "ns" / "user")
                    fields = dict(line.split(":\t", 1) for line in (place / "status").read_text().splitlines())
                except OSError:
                    continue  # it has ended
                if fields["Name"] in ("chroot", "env", "setpriv"):
                    continue  # they become the command
                self.users.add(fields["Uid"].split()[0])
                self.capabilities.add(fields["CapBnd"])
                self.namespaces.add(namespace)
