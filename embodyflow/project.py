"""The folders of a project: its own rooms, and those that the package ships.

A project is a folder with ``flows/``, ``pipelines/``, ``tasks/``, ``envs/``, ``deployments/`` and ``configs/``; the
repository is one. ``embodyflow init`` writes another from the rooms that the wheel carries.
"""

from pathlib import Path

ROOMS = ("flows", "pipelines", "tasks", "envs", "deployments", "configs")


def shipped() -> Path:
    """Return the folder of the rooms that this version ships: in the wheel, or the checkout itself."""
    package = Path(__file__).resolve().parent
    template = package / "template"
    return template if template.is_dir() else package.parent


def config_folders() -> list[Path]:
    """Return the folders that configurations are read from: the project's own first, then the shipped ones.

    A file of the project stands in the place of the shipped one of the same name.
    """
    ours, theirs = shipped() / "configs", Path.cwd().resolve() / "configs"
    is_project = theirs.is_dir() and (theirs.parent / "deployments" / "prefect.yaml").is_file()
    return [theirs, ours] if is_project and theirs != ours else [ours]
