"""A run of an agent in one process, whose rollouts keep journals: ``journaled_run.py <word> …``.

It is the rollout worker of :mod:`planned_faults`. Started again, it goes through its iterations again and takes what
the journals have. The last line that it prints has the digest of the weights after each iteration.
"""

import json
import os
import sys
from types import SimpleNamespace

from planned_faults import folder_of_run

from benchmarks.control.in_process import InProcessRun
from embodyflow.data.rows_file import Journal
from embodyflow.data.tables import digest_of


class JournaledRun(InProcessRun):
    """A run in one process that keeps the journals of its nodes."""

    def _call(self, iteration: int, node_id: str, num_rows: int) -> SimpleNamespace:
        call = super()._call(iteration, node_id, num_rows)
        folder = folder_of_run() / "stages" / str(iteration) / node_id
        call.journal = lambda rank, part=0: Journal(folder / f"{rank}.{part}.parts")
        return call


def main(*words: str) -> None:
    """Train for two iterations."""
    folder = folder_of_run()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "processes.json").write_text(json.dumps({"rollout/0": os.getpid()}))
    run = JournaledRun(words)
    run.warm_start()
    digests = []
    for iteration in (1, 2):
        run.iterate(iteration)
        digests.append(digest_of(run.trainer.weights()))
    print(json.dumps(digests), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
