"""Arrays of a mapped segment that a process reads one after another, without a copy of the whole in its memory."""

import mmap
from collections.abc import Iterator, Mapping

from embodyflow.data.ragged import Array


class MappedArrays(Mapping[str, Array]):
    """Arrays by name. Whenever one is taken, the pages of those that were read before leave this process's memory.

    They stay in the segment, from which they come back if they are read again. The arrays must not be written to.

    Args:
        arrays: Views of mapped memory; other arrays stay as they are.
    """

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays = arrays
        found = {id(memory): memory for memory in map(_memory_of, arrays.values()) if memory is not None}
        self._memories = list(found.values())

    def __getitem__(self, name: str) -> Array:
        for memory in self._memories:
            memory.madvise(mmap.MADV_DONTNEED)
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


def _memory_of(array: Array) -> mmap.mmap | None:
    """Return the mapping that an array is a view of, if any."""
    base: object = array
    while isinstance(base, memoryview) or hasattr(base, "base"):
        base = base.obj if isinstance(base, memoryview) else base.base
    return base if isinstance(base, mmap.mmap) else None
