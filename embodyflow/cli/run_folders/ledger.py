"""``embodyflow ledger``: the ledger of a run and the state of its checkpoints."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.table import Table

from embodyflow.cli.tables import as_it_is, table_console
from embodyflow.errors import ConfigError, DamageError
from embodyflow.record.ledger import Entry, Ledger
from embodyflow.record.run_folder import RunFolder, unrestorable_lines


def show_ledger(path: Path) -> int:
    """Print a run's ledger and verify its checkpoints and metrics; return 1 if something is damaged, else 0.

    Raises:
        ConfigError: The folder does not hold a run.
    """
    folder = RunFolder(path)
    if not folder.ledger_path.is_file():
        raise ConfigError(f"{path}: has no ledger.jsonl; name the folder of a run, such as runs/mine")
    committed = folder.checkpoints.committed()  # before the ledger is read, since the run may be at work
    try:
        ledger = Ledger(folder.ledger_path)
    except DamageError as error:
        print(error, file=sys.stderr)
        return 1
    if not ledger.entries:
        print(f"{folder.ledger_path}: has no whole line, so it records nothing", file=sys.stderr)
        return 1
    table = Table("line", "iteration", "entry", "digest", box=None)
    for number, entry in enumerate(ledger.entries, start=1):
        table.add_row(str(number), str(entry.iteration), *map(as_it_is, _shown(entry)))
    table_console().print(table)
    print(f"digest {ledger.digest()}")
    for line in unrestorable_lines(folder.unrestorable()):
        print(line)
    damaged = 0
    for iteration in folder.checkpoints.committed():
        try:
            folder.checkpoints.verify(iteration)
            print(f"checkpoint of iteration {iteration}: intact")
        except DamageError as error:
            if not folder.checkpoints.folder(iteration).exists():  # the run has replaced it by a newer one
                continue
            print(error, file=sys.stderr)
            damaged += 1
    for line in _unrecorded(folder, committed[:-1], ledger):
        print(line, file=sys.stderr)
        damaged += 1
    last = max(folder.checkpoints.committed(), default=-1)
    if differing := folder.metrics.differing(last, ledger):
        iterations = ", ".join(map(str, differing))
        print(
            f"{folder.metrics.path}: lines of iterations {iterations} differ from the ledger; "
            f"resume={path.absolute().name} rebuilds them",
            file=sys.stderr,
        )
    return 1 if damaged or differing else 0


def _unrecorded(folder: RunFolder, iterations: Sequence[int], ledger: Ledger) -> Iterator[str]:
    """Yield a line for each checkpoint whose commit the ledger lacks: lines that are cut off its end leave no trace.

    Args:
        folder: Folder of the run.
        iterations: Iterations with a checkpoint, but the newest: a run writes its line after it, and a run that was
            killed in between when it is resumed.
        ledger: Ledger of the run.
    """
    recorded = {entry.iteration for entry in ledger.entries if entry.kind == "commit"}
    for iteration in iterations:
        if iteration not in recorded:
            yield (
                f"{folder.ledger_path}: has no line for the checkpoint of iteration {iteration}, so lines are missing "
                "at its end; restore the file, or start another run"
            )


def _shown(entry: Entry) -> tuple[str, str]:
    """Return the name of an entry and the start of its digest."""
    if entry.kind == "stage":
        return f"rows of {entry.facts['node_id']}", entry.facts["digests"][0][:12]
    if entry.kind == "groups":
        dropped = f", {number} dropped" if (number := len(entry.facts["dropped"])) else ""
        return f"{len(entry.facts['groups'])} groups{dropped}", ""
    if entry.kind == "workers":
        return f"{(number := entry.facts['number'])} rollout worker{'s' * (number > 1)}", ""
    if entry.kind == "roll_back":
        values = ", ".join(f"{key}={value:.4g}" for key, value in entry.facts["values"].items())
        return f"rolled back to {entry.facts['to']} with {values}", ""
    if entry.kind == "alarm":
        return f"alarm of {entry.facts['detector']}: {entry.facts['text']}", ""
    if entry.kind == "answer":
        return f"answer to {entry.facts['detector']}: {entry.facts['answer']}", ""
    if entry.kind == "branch":
        origin = f"{entry.facts['take']} of {entry.facts['run']} after iteration {entry.facts['from_iteration']}"
        return f"began with {origin}", entry.facts["weights_digest"][:12]
    return "evaluated" if entry.kind == "evaluation" else "committed", entry.facts["weights_digest"][:12]
