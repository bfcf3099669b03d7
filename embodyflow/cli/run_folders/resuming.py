"""Runs that stop: which they are, and the command that resumes them."""

import shlex
from pathlib import Path

from embodyflow.config.composition.words import word_of
from embodyflow.orchestration.watchers.orphans import marked_processes
from embodyflow.record.run_folder import RunFolder
from embodyflow.stack.processes import STACK_VARIABLE
from embodyflow.stack.stack_folder import StackFolder

RUN_ROOT = "runs"
"""Default of ``run_root``, which a command line may leave out."""


def how_to_resume(folder: RunFolder) -> str:
    """Return the command that resumes a run and the iteration after which it continues, if there is one."""
    committed = folder.checkpoints.committed()
    if not committed:
        return "it has committed no iteration, so there is nothing to resume"
    root = ""
    if folder.path.parent != Path(RUN_ROOT):
        root = " " + shlex.quote(word_of("run_root", str(folder.path.parent)))
    return f"embodyflow run resume={folder.path.name}{root} continues after iteration {committed[-1]}"


def runs_of_stack(folder: StackFolder) -> list[RunFolder]:
    """Return the runs in the project's ``runs/`` that processes of its stack are at work on."""
    stack = {process.pid for process in marked_processes(STACK_VARIABLE, str(folder.root))}
    found = [RunFolder(path.parent.relative_to(folder.root)) for path in folder.root.glob(f"{RUN_ROOT}/*/config.yaml")]
    return [run for run in found if run.worker_pid() in stack]
