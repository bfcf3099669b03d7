"""Run the comparisons with peers in their quick forms and show them as one table.

    make bench
    python -m benchmarks.suite --only vector_env generation

Each entry runs a benchmark's script with fewer rounds and sizes. Contenders take turns in the script. The ratio is how
many times as fast as the peer ours is, the median over the rounds. Its spread is the interquartile range over the
rounds, divided by the median. Where the spread is over the entry's limit, the machine is too noisy: the row has no
figures, and the exit code is 1, as it is if a script fails. An entry whose packages or environment variables are
missing is skipped.

All entries together take at most 20 minutes, because each is stopped at its own limit. Results go to
``benchmarks/results/suite.json``, where rows of entries that did not run now stay.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.suite.entries import ENTRIES, Entry
from benchmarks.suite.rows import BAD, ROOT, Row, rows_of
from benchmarks.suite.terminal import table

RESULTS = ROOT / "benchmarks" / "results" / "suite.json"
LOGS = ROOT / "build" / "benchmarks"


def main(words: Sequence[str] | None = None, entries: Sequence[Entry] = ENTRIES) -> int:
    """Run the suite; return 1 if a row is too noisy or a script failed, else 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [entry.name for entry in entries]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="entries to run; default: all")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--folder", type=Path, default=LOGS, help="folder for logs and results of the scripts")
    arguments = parser.parse_args(words)
    chosen = [entry for entry in entries if entry.name in arguments.only]
    rows: list[Row] = []
    print(f"{len(chosen)} entries, at most {sum(entry.max_seconds for entry in chosen) / 60:.0f} minutes", flush=True)
    for index, entry in enumerate(chosen, start=1):
        print(f"[{index}/{len(chosen)}] {entry.name}, at most {entry.max_seconds} s … ", end="", flush=True)
        found = rows_of(entry, arguments.folder)
        print(f"{found[0].status if found[0].status == 'skipped' else f'{found[0].seconds:.0f} s'}", flush=True)
        rows += found
        write(rows, arguments.output, [entry.name for entry in chosen[:index]], names)
    print(f"\n{table(rows)}\n\nwritten to {arguments.output}")
    bad = [f"{row.script}{f' ({row.case})' if row.case else ''}: {row.status}" for row in rows if row.status in BAD]
    for line in bad:
        print(line, file=sys.stderr)
    return 1 if bad else 0


def write(rows: Sequence[Row], output: Path, done: Sequence[str], names: Sequence[str]) -> None:
    """Write rows to the result file, where the rows of other entries of the suite stay.

    Args:
        rows: Rows of the entries that are done.
        output: Result file.
        done: Names of these entries.
        names: Names of all entries, in the order of the file.
    """
    others = json.loads(output.read_text())["rows"] if output.exists() else []
    kept = [row for row in others if row["script"] in names and row["script"] not in done]
    merged = sorted([*kept, *(row.to_dict() for row in rows)], key=lambda row: names.index(row["script"]))
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({"rows": merged}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
