"""Profiles of a trainer rank by torch.profiler, for chosen iterations (``trainer.profile``)."""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from embodyflow.process.tracing import span

if TYPE_CHECKING:  # torch, which the flow's process does without: it knows the worker by name only
    from torch.profiler import profile

PROFILES = "profiles"
"""Folder of the profiles in a run's folder."""


class Profiles:
    """The profiles of one rank, a Chrome trace per chosen iteration.

    A profile begins with the iteration's first node that uses the model, and ends when the iteration's weights are
    published. torch.profiler observes the thread that starts it, so all methods are called in the one thread that runs
    these nodes.

    Args:
        folder: Folder of the files.
        iterations: Chosen iterations, from 1.
        rank: Rank within the trainer group.
        device: Device of the models. With ``cuda`` a profile has kernels too, and nodes are NVTX ranges.
    """

    def __init__(self, folder: Path, iterations: Collection[int], rank: int, device: str) -> None:
        self._folder, self._iterations, self._rank = folder, iterations, rank
        self._has_gpu = device == "cuda"
        self._running: tuple[int, profile] | None = None  # and its iteration

    def path(self, iteration: int) -> Path:
        """Return the file of an iteration."""
        return self._folder / f"iteration-{iteration:06d}-rank-{self._rank}.json.gz"

    @contextmanager
    def node(self, iteration: int, node_id: str) -> Iterator[None]:
        """Profile the block under the name of a node, if its iteration is chosen.

        Args:
            iteration: Index of the iteration.
            node_id: Name of the node.
        """
        if iteration not in self._iterations:
            yield
            return
        from torch.cuda import nvtx
        from torch.profiler import record_function

        self._begin(iteration)
        if self._has_gpu:
            nvtx.range_push(node_id)
        try:
            with record_function(node_id):
                yield
        finally:
            if self._has_gpu:
                nvtx.range_pop()

    def end(self, iteration: int) -> None:
        """Write the profile of an iteration in place of an earlier one; do nothing if none is running.

        Args:
            iteration: Index of the iteration.

        Raises:
            OSError: The file cannot be written.
        """
        if self._running is None or self._running[0] != iteration:
            return
        found = self._stop()
        path = self.path(iteration)
        aside = path.with_name(f".{os.getpid()}.{path.name}")
        with span("write profile", "disk", iteration=iteration):
            self._folder.mkdir(parents=True, exist_ok=True)
            found.export_chrome_trace(str(aside))
            aside.replace(path)

    def drop(self) -> None:
        """Stop the running profile without a file, because its iteration begins again."""
        if self._running is not None:
            self._stop()

    def _begin(self, iteration: int) -> None:
        from torch.profiler import ProfilerActivity, profile

        if self._running is not None and self._running[0] == iteration:
            return
        self.drop()  # of an iteration that was given up
        gpu = [ProfilerActivity.CUDA] if self._has_gpu else []
        running = profile(activities=[ProfilerActivity.CPU, *gpu])
        running.start()
        self._running = iteration, running

    def _stop(self) -> "profile":
        assert self._running is not None
        (_, running), self._running = self._running, None
        running.stop()
        return running
