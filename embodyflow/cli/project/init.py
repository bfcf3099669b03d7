"""``embodyflow init``: write a project of the user's own."""

import shlex
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from packaging.version import Version

from embodyflow import __version__
from embodyflow.errors import ConfigError
from embodyflow.project import ROOMS, VERSION_FILE, RoomsRecord, shipped

STARTER = Path(__file__).resolve().parent / "starter"
COPIED = ("flows", "pipelines", "tasks", "envs", "deployments")
"""Rooms whose files are copied, without the folders of ``deployments/``, which are for clusters; ``configs/`` holds an
example only, because the shipped files are found behind it."""


def init(folder: Path) -> int:
    """Write a project into a folder, and print how to go on; return the exit code.

    Args:
        folder: New folder, or one that holds none of the project's files.

    Raises:
        ConfigError: The folder holds some of them, lies in the folder of a run, or cannot be written; nothing was
            written then.
    """
    files = project_files()
    _refuse_existing(folder, files)
    _refuse_run(folder)
    _write(folder, files | {Path(VERSION_FILE): record_of(files).text()})
    here = folder.resolve() == Path.cwd().resolve()
    print(f"{folder}: a project for embodyflow {__version__}; README.md says what is where")
    print(f"next: {'' if here else f'cd {shlex.quote(str(folder))} && '}embodyflow run experiment=mine")
    return 0


def _write(folder: Path, files: Mapping[Path, str]) -> None:
    """Write files into a folder; if that fails or is stopped, such as on a full disk, remove all that was written."""
    made: list[Path] = []
    try:
        for path, content in files.items():
            for parent in reversed((folder / path).parents):
                if not parent.exists():
                    parent.mkdir()
                    made.append(parent)
            with (folder / path).open("x", encoding="utf-8") as file:
                made.append(folder / path)
                file.write(content)
    except BaseException as error:
        for each in reversed(made):
            with suppress(OSError):  # the error above says what is wrong; a folder may have got a file of others
                each.rmdir() if each.is_dir() else each.unlink()
        if isinstance(error, OSError):
            place = error.filename or made[-1]  # a full disk names no file
            raise ConfigError(f"{folder}: cannot be written: {error.strerror}: {place}") from error
        raise


def project_files() -> dict[Path, str]:
    """Return the files of a new project, without its record: path within the project to content."""
    rooms = shipped()
    sources = {
        path.relative_to(rooms): path
        for room in COPIED
        for path in sorted((rooms / room).glob("*"))
        if path.suffix in (".py", ".yaml")
    }
    sources |= {
        Path("README.md"): STARTER / "README.md",
        Path(".gitignore"): STARTER / "gitignore",
        Path("configs/experiment/mine.yaml"): STARTER / "configs/experiment/mine.yaml",
    }
    return {path: source.read_text(encoding="utf-8") for path, source in sources.items()}


def record_of(files: dict[Path, str]) -> RoomsRecord:
    """Return the record of a project with these files, as this version ships them."""
    return RoomsRecord(Version(__version__), {str(path): digest(text.encode()) for path, text in files.items()})


def digest(content: bytes) -> str:
    """Return the SHA-256 of a file's content in hexadecimal."""
    return sha256(content).hexdigest()


def _refuse_run(folder: Path) -> None:
    """Refuse a folder inside that of a run, which is removed and copied as a whole."""
    from embodyflow.record.folder_files import read_config  # takes a second

    place = folder.resolve()
    for each in (place, *place.parents):
        if not (each / "config.yaml").is_file():
            continue
        try:
            read_config(each / "config.yaml")
        except ConfigError:  # a configuration of another program's
            continue
        raise ConfigError(f"{folder}: lies in {each}, the folder of a run; allowed is a folder outside of all runs")


def _refuse_existing(folder: Path, files: dict[Path, str]) -> None:
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder}: is not a folder; allowed is a new one, or one without a project's files")
    if (folder / VERSION_FILE).exists():
        raise ConfigError(
            f"{folder}: is a project already; `embodyflow init --upgrade {shlex.quote(str(folder))}` brings its rooms "
            f"to embodyflow {__version__}"
        )
    names = [*(Path(room) for room in ROOMS), *(Path(f"{room}.py") for room in ROOMS)]
    names += [path for path in files if len(path.parts) == 1]
    if found := [str(name) for name in names if (folder / name).exists()]:
        without = "it" if len(found) == 1 else "them"
        raise ConfigError(f"{folder}: holds {', '.join(found)} already; allowed is a folder without {without}")
