"""``embodyflow ledger``: the ledger of a run and the state of its checkpoints."""

import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from embodyflow.errors import ConfigError, DamageError
from embodyflow.record.ledger import Ledger
from embodyflow.record.run_folder import RunFolder, unrestorable_lines


def show_ledger(path: Path) -> int:
    """Print a run's ledger and verify its checkpoints; return 1 if something is damaged, else 0.

    Raises:
        ConfigError: The folder does not hold a run.
    """
    folder = RunFolder(path)
    if not folder.ledger_path.is_file():
        raise ConfigError(f"{path}: has no ledger.jsonl; name the folder of a run, such as runs/mine")
    try:
        ledger = Ledger(folder.ledger_path)
    except DamageError as error:
        print(error, file=sys.stderr)
        return 1
    table = Table("line", "iteration", "entry", "digest", box=None)
    for number, entry in enumerate(ledger.entries, start=1):
        name = f"rows of {entry.facts['node_id']}" if entry.kind == "stage" else "committed"
        digest = entry.facts["digests"][0] if entry.kind == "stage" else entry.facts["weights_digest"]
        table.add_row(str(number), str(entry.iteration), name, digest[:12])
    Console().print(table)
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
    return 1 if damaged else 0
