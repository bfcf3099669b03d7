"""The scratch run of a reproduction: a folder that is resumed from the record of another run."""

import os
import shutil
from pathlib import Path
from typing import Any

import yaml

from embodyflow.cli.reproduction.span import Span
from embodyflow.config.composition.words import changed_by
from embodyflow.record.episodes.labelled_episodes import LABELLED
from embodyflow.record.ledger import Ledger
from embodyflow.record.run_folder import UNRESTORABLE_FILE, RunFolder

DECISIONS = ("groups", "workers")
"""Kinds of lines of a ledger that do not follow from a run's seed, and that a resume repeats."""

UNTRACKED = {"tensorboard": False, "wandb": "disabled", "trace": False}
"""Section ``tracking`` of the scratch run, whose metrics nobody watches."""


def prepare(path: Path, folder: RunFolder, ledger: Ledger, span: Span, max_staleness: int) -> RunFolder:
    """Create a folder that a resume continues with the iterations to repeat, as the run's record says.

    Its ledger begins with the decisions of the run that do not follow from its seed.

    Args:
        path: The folder to create.
        folder: Folder of the run.
        ledger: Ledger of the run.
        span: Iterations to repeat.
        max_staleness: The run's ``rollout.max_staleness``.

    Raises:
        DamageError: A checkpoint that it starts from is damaged.
    """
    scratch = RunFolder(path)
    scratch.checkpoints.path.mkdir(parents=True)
    changed = [f"{key}={value!r}" for key, value in ledger.values_after(span.first - 1).items()]
    (path / "config.yaml").write_text(yaml.safe_dump(changed_by(_settings(folder), changed), sort_keys=False))
    if (folder.path / UNRESTORABLE_FILE).exists():
        shutil.copy2(folder.path / UNRESTORABLE_FILE, path)
    for iteration in span.checkpoints(max_staleness):
        folder.checkpoints.verify(iteration)
        shutil.copytree(
            folder.checkpoints.folder(iteration), scratch.checkpoints.folder(iteration), copy_function=_link
        )
    _copy_surplus(folder, scratch, span.first)
    if (labelled := folder.path / LABELLED).is_dir():
        shutil.copytree(labelled, path / LABELLED)
    decisions = Ledger(scratch.ledger_path)
    for entry in ledger.entries:
        if entry.kind in DECISIONS and entry.iteration <= span.last:
            decisions.append(entry.kind, entry.iteration, entry.facts)
    return scratch


def _settings(folder: RunFolder) -> dict[str, Any]:
    """Return the run's configuration without trackers, profiles and videos."""
    settings = folder.config() | {"tracking": UNTRACKED}
    settings["trainer"].pop("profile", None)
    evaluation = settings.get("evaluation") or {}
    if "video" in evaluation:
        settings["evaluation"] = evaluation | {"video": False}
    return settings


def _copy_surplus(folder: RunFolder, scratch: RunFolder, iteration: int) -> None:
    """Copy the rows that the iteration before left over for the first one to repeat."""
    stage = folder.stages.folder(iteration, "")
    for rows in stage.glob("*/*.surplus"):
        target = scratch.stages.folder(iteration, rows.parent.name) / rows.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(rows, target)


def _link(source: str, target: str) -> None:
    """Link a file of a checkpoint, which never changes; copy it where that is impossible."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
