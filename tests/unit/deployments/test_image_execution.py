"""How the executor of images works through a Dockerfile, with commands that are recorded and not run."""

import tempfile
from pathlib import Path

import pytest
from build_context import BuildContext
from chroot import Bind, Container
from dockerfile import DockerfileError
from image_build import ImageBuild, Stage, StepError


class Recorder:
    """The commands of a build, and a base with one file.

    Args:
        folder: Folder for the context and the stages.
    """

    def __init__(self, folder: Path) -> None:
        self.context, self._folder = folder / "context", folder
        self.context.mkdir()
        self.containers: list[Container] = []
        self.commands: list[str] = []
        self.images: list[str] = []

    def base(self, image: str, root: Path) -> dict[str, str]:
        self.images.append(image)
        (root / "etc").mkdir()
        (root / "etc" / "passwd").write_text("root:x:0:0::/root:/bin/sh\nme:x:1000:1000::/home/me:/bin/sh\n")
        return {"PATH": "/bin"}

    def execute(self, container: Container, command: list[str], log: Path) -> int:
        self.containers.append(container)
        self.commands.append(command[-1])
        (container.root / f"made-by-{len(self.commands)}").touch()
        return 3 if command[-1] == "fails" else 0

    def build(self, text: str, caches: dict[str, Path] | None = None, **arguments: str) -> Stage:
        self.stages = Path(tempfile.mkdtemp(dir=self._folder))
        context = BuildContext(self.context)
        return ImageBuild(context, self.stages, self.base, arguments, caches, execute=self.execute).run(text)


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(tmp_path)


def test_arguments_have_the_scope_of_their_stage(recorder: Recorder) -> None:
    text = """
ARG TAG=1
ARG EXTRAS=a
FROM base:${TAG} AS first
ARG EXTRAS
ARG LOCAL=${EXTRAS}-b
RUN one
FROM first
RUN two
ARG EXTRAS=own
RUN three
"""
    recorder.build(text, TAG="2")
    one, two, three = (container.env for container in recorder.containers)
    assert recorder.images == ["base:2"]
    assert (one["EXTRAS"], one["LOCAL"], three["EXTRAS"]) == ("a", "a-b", "own")
    assert not two.keys() & {"EXTRAS", "LOCAL", "TAG"}
    with pytest.raises(DockerfileError, match=r"no value for \$\{LOCAL\}"):
        recorder.build("FROM base AS a\nARG LOCAL=1\nFROM a\nWORKDIR /${LOCAL}\n")


def test_an_argument_that_nothing_declares_is_refused(recorder: Recorder) -> None:
    with pytest.raises(DockerfileError, match="no ARG BACKEND"):
        recorder.build("FROM base\n", BACKEND="cpu")


def test_variables_folder_user_and_command_are_those_of_the_stage_and_its_base(recorder: Recorder) -> None:
    text = """
FROM base AS first
WORKDIR /app
ENV PATH=/app/bin:$PATH KIND='a b'
FROM first
WORKDIR runs
USER 1000:1000
RUN one
CMD ["program", "word"]
"""
    stage = recorder.build(text)
    [container] = recorder.containers
    assert container.env["PATH"] == "/app/bin:/bin" and container.env["KIND"] == "a b"
    assert (container.workdir, container.user, container.env["HOME"]) == ("/app/runs", "1000:1000", "/home/me")
    assert stage.command == ["program", "word"]
    assert (stage.root / "app" / "runs").is_dir()


def test_files_come_from_the_context_and_from_stages(recorder: Recorder) -> None:
    for name in ("a.txt", "code/b.py", "ignored"):
        (recorder.context / name).parent.mkdir(exist_ok=True)
        (recorder.context / name).write_text(name)
    (recorder.context / ".dockerignore").write_text("ignored\n.dockerignore\n")
    text = """
FROM base AS first
WORKDIR /app
COPY a.txt code/b.py ./
COPY code code
RUN one
FROM base
WORKDIR /app
COPY --from=first /app/code copied
COPY --from=first /app/a.txt .
COPY . .
"""
    stage = recorder.build(text)
    app = stage.root / "app"
    found = sorted(str(path.relative_to(app)) for path in app.rglob("*") if path.is_file())
    assert found == ["a.txt", "code/b.py", "copied/b.py"]
    first = sorted(path.name for path in (recorder.stages / "stage-0" / "app").iterdir())
    assert first == ["a.txt", "b.py", "code"]
    assert not (stage.root / "made-by-1").exists(), "a stage has what its own base and steps made"


def test_a_cache_is_bound_to_the_folder_that_it_is_given(recorder: Recorder, tmp_path: Path) -> None:
    mounts = [f"--mount=type=cache,target={target} one" for target in ("/root/.cache", "/other")]
    recorder.build(
        "FROM base\n" + "".join(f"RUN {words}\n" for words in (*mounts, "two")),
        caches={"/root/.cache": tmp_path / "mine"},
    )
    bound = [[bind for bind in container.binds if bind.writable] for container in recorder.containers]
    assert bound[0] == [Bind(tmp_path / "mine", "/root/.cache", writable=True)]
    assert bound[1][0].target == "/other" and bound[1][0].source.is_dir() and not bound[2]


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("RUN --mount=type=secret,id=a one", "type=cache"),
        ("RUN --mount=type=cache,target=/a,sharing=locked one", "type=cache"),
        ("RUN --mount=type=cache one", "absolute path"),
        ("COPY --from=later a b", "no stage later"),
        ("COPY *.py b", "without wildcards"),
        ("COPY a", "a destination"),
        ("USER me", "uid:gid"),
        ("CMD program", "list of strings"),
        ("ENV NAME", "NAME=value"),
    ],
)
def test_forms_that_are_not_executed_are_refused(recorder: Recorder, step: str, message: str) -> None:
    with pytest.raises(DockerfileError, match=message):
        recorder.build(f"FROM base\n{step}\n")


def test_a_step_that_fails_ends_the_build(recorder: Recorder) -> None:
    with pytest.raises(StepError, match="line 3: RUN fails: exit status 3"):
        recorder.build("FROM base\nRUN one\nRUN fails\nRUN never\n")
    assert recorder.commands == ["one", "fails"]
    with pytest.raises(StepError, match="absent: not in the build context"):
        recorder.build("FROM base\nCOPY absent .\n")
