"""The instructions of a Dockerfile, executed without Docker: each stage is a folder, in which its commands run."""

import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from build_context import BuildContext
from chroot import Bind, Container
from dockerfile import DockerfileError, Instruction, assignments, command, parse, substitute

Executor = Callable[[Container, list[str], Path], int]


class StepError(Exception):
    """A step of a build failed."""


@dataclass
class Stage:
    """What the instructions of a stage have made so far.

    Args:
        root: Its folder.
        env: Environment variables of its commands, by ``ENV`` and by the image that it begins with.
        arguments: Values of its ``ARG``.
        workdir: Absolute path in which its commands start.
        user: ``uid:gid`` of its commands.
        command: The command of its containers.
    """

    root: Path
    env: dict[str, str]
    arguments: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = "0:0"
    command: list[str] = field(default_factory=list)

    def values(self) -> dict[str, str]:
        """Return what its instructions may refer to: ``ENV`` wins over ``ARG``."""
        return self.arguments | self.env

    def container(
        self, env: Mapping[str, str] | None = None, binds: tuple[Bind, ...] = (), shm: str = "64m"
    ) -> Container:
        """Return a container of it, with the home of its user, more environment variables and binds."""
        home = {"HOME": _home(self.root, self.user.partition(":")[0])}
        return Container(self.root, home | self.env | dict(env or {}), self.workdir, self.user, binds, shm)


class ImageBuild:
    """A build.

    Args:
        context: Files that it may copy.
        folder: Folder for its stages and its log.
        make_base: Function that fills a folder with an image from outside, by its name, and returns its environment.
        arguments: Values of ``--build-arg``.
        caches: Folders of this machine for ``--mount=type=cache``, by their targets; others begin empty.
        access: Environment variables and binds by which commands reach packages, as of ``package_access``.
        execute: Function that runs a command in a container and returns its exit status.

    Attributes:
        log: File with the output of all steps.
        seconds: Each step with the seconds that it took.
    """

    def __init__(
        self,
        context: BuildContext,
        folder: Path,
        make_base: Callable[[str, Path], dict[str, str]],
        arguments: Mapping[str, str] | None = None,
        caches: Mapping[str, Path] | None = None,
        access: tuple[Mapping[str, str], tuple[Bind, ...]] = ({}, ()),
        execute: Executor = Container.run,
    ) -> None:
        self.log = folder / "build.log"
        self.seconds: list[tuple[str, float]] = []
        self._context, self._folder, self._make_base, self._execute = context, folder, make_base, execute
        self._given, self._caches = dict(arguments or {}), dict(caches or {})
        self._access = access
        self._globals: dict[str, str] = {}
        self._declared: set[str] = set()
        self._stages: dict[str, Stage] = {}

    def run(self, text: str) -> Stage:
        """Execute a Dockerfile; return its last stage.

        Raises:
            DockerfileError: An instruction is wrong or is not executed here.
            StepError: A step failed.
        """
        stage = None
        for step in parse(text):
            start = time.monotonic()
            with self.log.open("a") as file:
                print(step, file=file)
            if step.name == "FROM":
                stage = self._begin(step)
            elif stage is None:
                if step.name != "ARG":
                    raise DockerfileError(f"{step}: before the first FROM")
                self._globals |= self._argument(step, self._globals, {})
            else:
                getattr(self, f"_{step.name.lower()}")(stage, step)
            self.seconds.append((str(step), time.monotonic() - start))
        if stage is None:
            raise DockerfileError("no FROM")
        if unknown := self._given.keys() - self._declared:
            raise DockerfileError(f"no ARG {', '.join(sorted(unknown))}")
        return stage

    def _begin(self, step: Instruction) -> Stage:
        image, *rest = substitute(step.words, self._globals).split()
        if rest and (len(rest) != 2 or rest[0].upper() != "AS"):
            raise DockerfileError(f"{step}: FROM <image> AS <name> is executed here")
        name = rest[1] if rest else str(len(self._stages))
        root = self._folder / f"stage-{len(self._stages)}"
        if before := self._stages.get(image):
            self._check(step, _copy_all(before.root, root))
            stage = Stage(root, dict(before.env), {}, before.workdir, before.user, list(before.command))
        else:
            root.mkdir()
            stage = Stage(root, self._make_base(image, root))
        self._stages[name] = stage
        return stage

    def _argument(self, step: Instruction, known: Mapping[str, str], outer: Mapping[str, str]) -> dict[str, str]:
        name, equals, default = step.words.partition("=")
        self._declared.add(name)
        if name in self._given:
            return {name: self._given[name]}
        if equals:
            return {name: substitute(default, known)}
        return {name: outer[name]} if name in outer else {}

    def _arg(self, stage: Stage, step: Instruction) -> None:
        stage.arguments |= self._argument(step, stage.values(), self._globals)

    def _env(self, stage: Stage, step: Instruction) -> None:
        values = stage.values()  # of one instruction, all have the values from before it
        stage.env |= {name: substitute(value, values) for name, value in assignments(step.words)}

    def _workdir(self, stage: Stage, step: Instruction) -> None:
        stage.workdir = os.path.join(stage.workdir, substitute(step.words, stage.values()))
        _inside(stage, ".").mkdir(parents=True, exist_ok=True)

    def _user(self, stage: Stage, step: Instruction) -> None:
        user = substitute(step.words, stage.values())
        if not all(part.isdigit() for part in user.split(":")) or user.count(":") != 1:
            raise DockerfileError(f"{step}: uid:gid is needed, as numbers")
        stage.user = user

    def _cmd(self, stage: Stage, step: Instruction) -> None:
        stage.command = command(step.words)

    def _copy(self, stage: Stage, step: Instruction) -> None:
        *sources, last = substitute(step.words, stage.values()).split()
        if not sources or any(set(source) & set("*?[") for source in sources):
            raise DockerfileError(f"{step}: sources without wildcards and a destination are needed")
        origin = dict(step.options).get("from")
        if origin is not None and origin not in self._stages:
            raise DockerfileError(f"{step}: no stage {origin}")
        for source in sources:
            place = self._context.folder / source if origin is None else _inside(self._stages[origin], source)
            target = _inside(stage, last)
            if not place.is_dir() and (len(sources) > 1 or last.endswith("/") or target.is_dir()):
                target = target / place.name
            if origin is not None:
                self._check(step, _copy_all(place, target))
                continue
            try:
                self._context.copy(source, target)
            except FileNotFoundError as error:
                raise StepError(f"{step}: {error}") from None

    def _run(self, stage: Stage, step: Instruction) -> None:
        env, binds = self._access
        binds += tuple(self._cache(step, mount) for _, mount in step.options)
        container = stage.container(stage.arguments | stage.env | env, binds)
        self._check(step, self._execute(container, ["/bin/sh", "-c", step.words], self.log))

    def _cache(self, step: Instruction, mount: str) -> Bind:
        options = dict(assignments(mount.replace(",", " ")))
        target = options.pop("target", "")
        if options != {"type": "cache"} or not target.startswith("/"):
            raise DockerfileError(f"{step}: --mount=type=cache,target=<absolute path> is executed here")
        place = self._caches.get(target, self._folder / f"cache{target.replace('/', '-')}")
        place.mkdir(parents=True, exist_ok=True)
        return Bind(place, target, writable=True)

    def _check(self, step: Instruction, status: int) -> None:
        if status != 0:
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])
            raise StepError(f"{step}: exit status {status}\n{tail}")


def size(root: Path) -> int:
    """Return the bytes on disk of all below a folder."""
    return int(subprocess.run(["du", "-s", "-B1", root], check=True, capture_output=True, text=True).stdout.split()[0])


def _inside(stage: Stage, path: str) -> Path:
    """Return the path on this machine of a path in a stage, relative to its ``WORKDIR``."""
    return stage.root / os.path.normpath(os.path.join(stage.workdir, path)).lstrip("/")


def _home(root: Path, uid: str) -> str:
    """Return the home of a user by /etc/passwd, and ``/`` without one, as Docker does."""
    users = root / "etc" / "passwd"
    entries = [line.split(":") for line in users.read_text().splitlines()] if users.exists() else []
    return next((entry[5] for entry in entries if entry[2] == uid), "/")


def _copy_all(source: Path, target: Path) -> int:
    """Copy a file, or a folder's content, with owners, modes and times; return the exit status of ``cp``.

    An existing folder keeps its owner and mode.
    """
    copy = ["cp", "-a", "--reflink=auto"]
    if not (source.is_dir() and target.exists()):
        target.parent.mkdir(parents=True, exist_ok=True)
        return subprocess.run([*copy, "-T", source, target]).returncode
    children = list(source.iterdir())
    return subprocess.run([*copy, f"--target-directory={target}", *children]).returncode if children else 0
