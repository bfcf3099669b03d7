import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch


class ThreadRanks:
    """Ranks as threads, with a real all-reduce: every rank must call it equally often."""

    def __call__(self, num_ranks: int, work: Callable[[int, Callable[[torch.Tensor], torch.Tensor]], Any]) -> list[Any]:
        slots: list[torch.Tensor | None] = [None] * num_ranks
        barrier = threading.Barrier(num_ranks, timeout=30)

        def run(rank: int) -> Any:
            def all_reduce(tensor: torch.Tensor) -> torch.Tensor:
                slots[rank] = tensor
                barrier.wait()
                total = sum(slots)
                barrier.wait()
                return total

            return work(rank, all_reduce)

        with ThreadPoolExecutor(num_ranks) as pool:
            return list(pool.map(run, range(num_ranks)))


@pytest.fixture(scope="session")
def run_ranks() -> ThreadRanks:
    return ThreadRanks()
