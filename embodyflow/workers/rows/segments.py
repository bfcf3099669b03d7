"""Segments: unnamed files that processes of one machine map into their memory.

A segment is opened with ``O_TMPFILE``, in a tmpfs for shared memory or on disk for spilled shards. Other processes open
it through ``/proc/<pid>/fd``. It lives as long as its buffer or any process that maps it, so a kill leaves nothing
behind. A reader holds a shared ``flock`` until its mapping ends, so no writer gets a segment that is still read.
"""

import errno
import fcntl
import mmap
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from embodyflow.data.plans.row_plan import Location
from embodyflow.data.table_packing import KEY_BYTES
from embodyflow.errors import BufferFullError, ConfigError

_MAPPED_SEGMENTS = 64  # segments that a process keeps mapped: writing to mapped pages is about ten times as fast

_GONE_ERRNOS = (
    *(errno.ENOENT, errno.ESRCH),  # the descriptor was closed, or the process has ended
    errno.ENXIO,  # the descriptor is a socket by now
    *(errno.EACCES, errno.EPERM),  # the process id belongs to another user by now
)


class Segment:
    """One segment, as seen by the buffer that owns it.

    Args:
        folder: Folder on the file system that provides the space.
        capacity: Size in bytes.

    Raises:
        ConfigError: The folder is missing, or its file system does not support unnamed files.
    """

    def __init__(self, folder: str, capacity: int) -> None:
        try:
            self.descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(
                f"cluster.buffer: {folder}: {error.strerror}; allowed are folders on tmpfs, ext4, xfs or btrfs"
            ) from error
        self.capacity = capacity
        os.ftruncate(self.descriptor, capacity)

    def location(self, key: int) -> Location:
        """Return the location at which other processes find the content with this key."""
        return Location(os.getpid(), self.descriptor, key)

    def clear(self) -> None:
        """Invalidate the content; existing mappings stay valid."""
        os.pwrite(self.descriptor, bytes(KEY_BYTES), 0)

    def is_read(self) -> bool:
        """Return True if a process maps the content."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        return False

    def copy_to(self, folder: str, num_bytes: int) -> "Segment":
        """Return a copy of the segment in another folder."""
        copy = Segment(folder, num_bytes)
        copy_content(self.descriptor, copy.descriptor, num_bytes)
        return copy

    def let_go(self) -> None:
        """Release the space once no process maps it."""
        os.close(self.descriptor)

    def close(self) -> None:
        """Release the space now, even if a writer maps it. A reader that maps it would die of a bus error."""
        os.ftruncate(self.descriptor, 0)
        os.close(self.descriptor)


@contextmanager
def opened(location: Location) -> Iterator[int]:
    """Yield a descriptor for writing to a segment, with its space reserved. It outlives the segment's buffer.

    Raises:
        FileNotFoundError: The buffer is gone.
        BufferFullError: The file system is full.
    """
    descriptor = os.open(f"/proc/{location.pid}/fd/{location.descriptor}", os.O_RDWR | os.O_CLOEXEC)
    try:
        _reserve(descriptor, os.fstat(descriptor))
        yield descriptor
    finally:
        os.close(descriptor)


def complete(descriptor: int, location: Location) -> None:
    """Mark a segment's content as complete, for those who know its location."""
    os.pwrite(descriptor, location.key.to_bytes(KEY_BYTES, "little"), 0)


def copy_content(source: int, target: int, num_bytes: int) -> None:
    """Copy the first bytes of a segment to another one, both given by descriptors; the kernel copies."""
    done = 0
    os.lseek(target, 0, os.SEEK_SET)
    while done < num_bytes:
        done += os.sendfile(target, source, done, num_bytes - done)


def map_content(location: Location) -> Any:
    """Map a segment's content; return the mmap, or ``None`` if the content is gone.

    The mapping is copy-on-write: other processes do not see writes to it.
    """
    with _locked(location) as descriptor:
        if descriptor is None:
            return None
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)  # keeps a duplicate, and thus the lock


@contextmanager
def _locked(location: Location) -> Iterator[int | None]:
    """Yield a descriptor of a segment that is marked as read within the block; ``None`` if its content is gone."""
    # Non-blocking, because the descriptor may be a pipe by now.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(f"/proc/{location.pid}/fd/{location.descriptor}", flags)
    except OSError as error:
        if error.errno not in _GONE_ERRNOS:
            raise
        yield None
        return
    try:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        if is_file:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        key = location.key.to_bytes(KEY_BYTES, "little")
        yield descriptor if is_file and os.pread(descriptor, KEY_BYTES, 0) == key else None
    finally:
        os.close(descriptor)


class ReadableSegments:
    """The segments that a reader copies from, which stay mapped for the next time.

    The buffer uses a segment again for later shards. Copying from pages that are mapped already is faster. A
    mapping alone does not mark its segment as read, so the buffer may use it again, or release its space.
    """

    def __init__(self) -> None:
        self._mapped: OrderedDict[int, Any] = OrderedDict()  # by inode number, least recently used first
        self._buffer: int | None = None
        self._lock = threading.Lock()  # concurrent nodes read at the same time

    @contextmanager
    def content(self, location: Location) -> Iterator[Any]:
        """Yield a segment's memory to copy from within the block, or ``None`` if the content is gone."""
        with _locked(location) as descriptor:
            yield None if descriptor is None else self._map(descriptor, location)

    def _map(self, descriptor: int, location: Location) -> Any:
        inode = os.fstat(descriptor).st_ino
        with self._lock:
            if location.pid != self._buffer:  # the segments of a dead buffer take up room while they are mapped
                self._mapped.clear()
                self._buffer = location.pid
            memory = self._mapped.pop(inode, None)
            if memory is None:
                # A description of its own: the lock belongs to that of ``descriptor``, and ends with the block.
                own = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    memory = mmap.mmap(own, 0, access=mmap.ACCESS_READ)
                finally:
                    os.close(own)
            if not location.is_spilled:  # a file on disk is not used again
                self._mapped[inode] = memory
            if len(self._mapped) > _MAPPED_SEGMENTS:
                self._mapped.popitem(last=False)
        return memory


class WritableSegments:
    """The segments that a writer was given, which stay mapped for the next time."""

    def __init__(self) -> None:
        self._mapped: OrderedDict[int, Any] = OrderedDict()  # by inode number, least recently used first
        self._buffer: bytes | None = None
        self._lock = threading.Lock()  # concurrent nodes write at the same time

    def belong_to(self, buffer: bytes) -> None:
        """Unmap all segments of other buffers than the one at this address; they take up its room."""
        with self._lock:
            if buffer != self._buffer:
                self._mapped.clear()
                self._buffer = buffer

    def map(self, location: Location) -> Any:
        """Return a shared mmap of the segment, with its space reserved.

        Raises:
            BufferFullError: The file system is full.
        """
        with self._lock:
            return self._map(location)

    def _map(self, location: Location) -> Any:
        with opened(location) as descriptor:
            status = os.fstat(descriptor)
            if status.st_ino not in self._mapped:
                self._mapped[status.st_ino] = mmap.mmap(descriptor, 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self._mapped.move_to_end(status.st_ino)
        if len(self._mapped) > _MAPPED_SEGMENTS:
            self._mapped.popitem(last=False)
        return self._mapped[status.st_ino]


def _reserve(descriptor: int, status: os.stat_result) -> None:
    """Reserve the pages now: without space this raises, where writing would die of a bus error."""
    if status.st_blocks * 512 >= status.st_size:
        return
    try:
        os.posix_fallocate(descriptor, 0, status.st_size)
    except OSError as error:
        raise BufferFullError(
            f"cluster.buffer.folder: no room for {status.st_size} bytes: {error.strerror}; "
            "lower cluster.buffer.memory_gb or give it another folder"
        ) from error


def free_bytes(folder: str) -> int:
    """Return the free bytes on a folder's file system.

    Raises:
        ConfigError: The folder does not exist.
    """
    with suppress(FileNotFoundError):
        status = os.statvfs(Path(folder))
        return status.f_bavail * status.f_frsize
    raise ConfigError(f"cluster.buffer: {folder}: no such folder")
