"""The process ids of a run."""

import os

from embodyflow.record.run_folder import RunFolder
from embodyflow.workers.session import Session


async def write_processes(folder: RunFolder, session: Session) -> None:
    """Write the process ids of the driver and the workers to a run's folder."""
    folder.write_processes({"driver": os.getpid(), **await session.processes()})
