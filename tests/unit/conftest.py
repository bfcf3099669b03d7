"""Unit tests compute in one thread, as every worker of a run does, and each module leaves its process group.

A row's bits depend on the number of threads: with more than one, attention differs by rounding with the row's place in
the batch. Two pytest processes on two cores also end sooner so. The variable is set before torch is imported, and for
the processes that tests start.
"""

import os
import sys
from collections.abc import Iterator

import pytest

os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(autouse=True, scope="module")
def _leave_process_group() -> Iterator[None]:
    """Leave the process group of the module's trainers, which would be in the way of another module's."""
    yield
    distributed = sys.modules.get("torch.distributed")  # most modules do not need it, and it takes a second to import
    if distributed is not None and distributed.is_initialized():
        distributed.destroy_process_group()
