"""``embodyflow init``: write a project of the user's own."""

from pathlib import Path

from embodyflow import __version__
from embodyflow.errors import ConfigError
from embodyflow.project import ROOMS, VERSION_FILE, shipped

STARTER = Path(__file__).resolve().parent / "starter"
COPIED = ("flows", "pipelines", "tasks", "envs", "deployments")
"""Rooms that are copied whole; ``configs/`` holds an example only, because the shipped files are found behind it."""


def init(folder: Path) -> int:
    """Write a project into a folder, and print how to go on; return the exit code.

    Args:
        folder: New folder, or one that holds none of the project's files.

    Raises:
        ConfigError: The folder holds some of them, or cannot be written; nothing was written then.
    """
    files = project_files()
    _refuse_existing(folder, files)
    try:
        for path, content in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            with (folder / path).open("x", encoding="utf-8") as file:
                file.write(content)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written: {error.strerror}: {error.filename}") from error
    print(f"{folder}: a project for embodyflow {__version__}; README.md says what is where")
    print(f"next: cd {folder} && embodyflow run")
    return 0


def project_files() -> dict[Path, str]:
    """Return the files of a new project: path within the project to content."""
    rooms = shipped()
    sources = {
        path.relative_to(rooms): path
        for room in COPIED
        for path in sorted((rooms / room).rglob("*"))
        if path.suffix in (".py", ".yaml")
    }
    sources |= {
        Path("README.md"): STARTER / "README.md",
        Path(".gitignore"): STARTER / "gitignore",
        Path("configs/experiment/mine.yaml"): STARTER / "configs/experiment/mine.yaml",
    }
    files = {path: source.read_text(encoding="utf-8") for path, source in sources.items()}
    files[Path(VERSION_FILE)] = (
        "# Written by `embodyflow init`: the version of embodyflow that the rooms of this project come from.\n"
        f'[rooms]\nversion = "{__version__}"\n'
    )
    return files


def _refuse_existing(folder: Path, files: dict[Path, str]) -> None:
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder}: is not a folder; allowed is a new one, or one without a project's files")
    names = [*(Path(room) for room in ROOMS), *(Path(f"{room}.py") for room in ROOMS)]
    names += [path for path in files if len(path.parts) == 1]
    if found := [str(name) for name in names if (folder / name).exists()]:
        without = "it" if len(found) == 1 else "them"
        raise ConfigError(f"{folder}: holds {', '.join(found)} already; allowed is a folder without {without}")
