"""Words that the shell completes: flows, experiments and runs, found by their files alone so that it is quick."""

from collections.abc import Iterable
from pathlib import Path

from embodyflow.project import config_folders, shipped


def complete_flow(typed: str) -> list[str]:
    """Return the flows that begin with ``typed``: those of the current project, or else the shipped ones."""
    room = Path("flows") if Path("flows").is_dir() else shipped() / "flows"
    return _that_begin(typed, (path.stem for path in room.glob("[!_]*.py")))


def complete_experiment(typed: str) -> list[str]:
    """Return the experiments that begin with ``typed``: the project's own and the shipped ones."""
    return _that_begin(typed, (path.stem for each in config_folders() for path in each.glob("experiment/*.yaml")))


def complete_run(typed: str) -> list[str]:
    """Return the folders in ``runs/`` that begin with ``typed``."""
    return _that_begin(typed, (str(path.parent) for path in Path("runs").glob("[!.]*/config.yaml")))


def complete_run_name(typed: str) -> list[str]:
    """Return the names of runs in ``runs/`` that begin with ``typed``."""
    return _that_begin(typed, (path.parent.name for path in Path("runs").glob("[!.]*/config.yaml")))


def _that_begin(typed: str, words: Iterable[str]) -> list[str]:
    return sorted({word for word in words if word.startswith(typed)})
